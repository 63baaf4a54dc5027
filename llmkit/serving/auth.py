"""Who asks: API keys, and the namespace of prefixes that each of them has.

Owns the comparison, which takes as long for a wrong key as for a right one. A namespace's name follows from the key
alone, so nothing that a client sends can name another's.
"""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers

from llmkit.engine.scheduling.requests import PUBLIC
from llmkit.errors import UsageError
from llmkit.serving.errors import ApiError

COMMON = PUBLIC
"""The namespace of everybody where there are no keys."""


class KeyRing:
    """The keys that open the server; without any it is open."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in dict.fromkeys(keys)]

    @property
    def open(self) -> bool:
        """Whether no key is asked for."""
        return not self._digests

    def namespace(self, headers: Headers) -> str:
        """That of the key in `Authorization: Bearer KEY` or `X-Api-Key: KEY`; 401 for a wrong one or none."""
        if self.open:
            return COMMON
        given = _digest(_key(headers))
        found = ""
        for digest in self._digests:  # all of them, whichever it is
            if hmac.compare_digest(digest, given):
                found = "key-" + digest.hex()[:32]
        if not found:
            raise ApiError("authentication_error", "Invalid API Key", headers={"WWW-Authenticate": "Bearer"})
        return found


def read_keys(texts: Iterable[str], file: str | None) -> tuple[str, ...]:
    """The keys of `--api-key A,B` and of `--api-key-file`: a key a line, # begins a comment."""
    keys = [key.strip() for text in texts for key in text.split(",")]
    if "" in keys:
        raise UsageError("--api-key gives an empty key", "Everybody would know it; leave it out.")
    if file is not None:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"--api-key-file {file} cannot be read: {reason}") from None
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise UsageError(f"--api-key-file {file} holds no key", "Write one a line; leave it out for none.")
        keys += found
    return tuple(dict.fromkeys(keys))


def _digest(key: str) -> bytes:
    """All of the same length, so that comparing tells nothing of a key's own."""
    return hashlib.sha256(b"llmkit api key\0" + key.encode("utf-8", "replace")).digest()


def _key(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
