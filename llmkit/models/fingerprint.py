"""A model's identity: the SHA-256 of its file's bytes, computed once and remembered by path, inode, size and time.

That of a split model is the SHA-256 of its parts' digests, in order.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from llmkit.files.atomic import write_atomic
from llmkit.files.cache_dir import cache_root
from llmkit.files.gguf_values import Entry

_CHUNK = 1 << 22


def _identity(path: Path) -> list[object]:
    status = path.stat()
    return [str(path.resolve()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def _record(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return cache_root() / "fingerprints" / f"{name}.json"


def _remembered(record: Path, identity: list[object]) -> str | None:
    try:
        data = json.loads(record.read_text())
        value = data["sha256"]
        return value if data["identity"] == identity and isinstance(value, str) and len(value) == 64 else None
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def fingerprint(paths: Sequence[Path]) -> str:
    """64 hex digits, of the one file or of all parts. A file changed in place without a new time is not noticed."""
    digests = [_of_file(path) for path in paths]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _of_file(path: Path) -> str:
    record, identity = _record(path), _identity(path)
    known = _remembered(record, identity)
    if known:
        return known
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    with suppress(OSError):  # a cache that cannot be written only costs time
        write_atomic(record, json.dumps({"identity": identity, "sha256": digest.hexdigest()}).encode())
    return digest.hexdigest()


def overridden_fingerprint(digest: str, overrides: dict[str, Entry]) -> str:
    """The identity of a file with the fingerprint `digest` whose metadata are overridden: 64 hex digits.

    Every part stands behind its length, so that no two sets of values read alike.
    """
    parts = [bytes.fromhex(digest)]
    for key, entry in sorted(overrides.items()):
        parts += [key.encode("utf-8", "surrogateescape"), entry.kind.encode(), bytes(entry.raw)]
    whole = hashlib.sha256(b"llmkit-overrides")
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()
