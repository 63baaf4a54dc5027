"""Fetches one file over HTTP into a path, and goes on where an earlier attempt, of this or a killed process, ended.

Owns ranges, retries and redirects. Beside PATH lies PATH.json, which says what the bytes so far are of; they are used
again only if the server says that the file is still the same one (ETag or Last-Modified), or its SHA-256 is known and
compared at the end. Proxies come from the environment, as everywhere. Knows nothing of models but their first letters.
"""

import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, Any

from llmkit.errors import CacheError, DownloadError
from llmkit.files.gguf_sniff import sniff

TRIES = 4
PAUSE_S = 1.0
TIMEOUT_S = 60.0
CHUNK_BYTES = 1 << 18
SPARE_BYTES = 32 << 20

_HINTS = {
    401: "It needs a login: for the hub, set HF_TOKEN.",
    403: "Access is not allowed: for the hub, accept the model's terms on its page and set HF_TOKEN.",
    404: "Look at the address again.",
}


@dataclass(frozen=True)
class Source:
    """Where a file is. `name` is its place in the model's folder; size and SHA-256 as far as they are known; `secret`
    headers are not sent on to where a server redirects to."""

    url: str
    name: str
    n_bytes: int | None = None
    sha256: str = ""
    secret: dict[str, str] = field(default_factory=dict)


Watch = Callable[[int, int | None], None]
"""Told how many bytes of the file are here, and its size, None while that is not known."""


class _RetryError(Exception):
    """Something that may be over at the next attempt; the text says what."""


def fetch(source: Source, path: Path, watch: Watch = lambda n, total: None) -> None:
    """Put the file into `path`, synced to the disk. DownloadError when the server refuses, what comes is no GGUF, or
    nothing comes in any of several attempts; then, and on Ctrl-C, what came so far stays for the next call."""
    n_failed = 0
    while True:
        n_before = _size(path)
        try:
            return _attempt(source, path, watch)
        except (_RetryError, urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as exc:
            n_failed = 1 if _size(path) > n_before else n_failed + 1
            if n_failed >= TRIES:
                raise DownloadError(
                    f"cannot fetch {shown_url(source.url)}: {_reason(exc)}",
                    "Check the network and the address; the same command goes on where this one ended.",
                ) from exc
            time.sleep(PAUSE_S * 2 ** (n_failed - 1))


def shown_url(url: str) -> str:
    """Without what stands after a question mark: that is where signatures are."""
    return url.partition("?")[0]


def _reason(exc: BaseException) -> str:
    reason = getattr(exc, "reason", None) or exc
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _attempt(source: Source, path: Path, watch: Watch) -> None:
    known = _read_state(source, path)
    have = _size(path) if known else 0
    total = known.get("total") if known else None
    if known and total is not None and have >= total:
        if have == total:
            watch(have, total)
            return
        have = 0
    with _open(source, have, known, path) as response:
        have, total = _start(source, response, have, known, path)
        _check_room(path, total, have)
        watch(have, total)
        with path.open("r+b" if have else "wb") as out:
            out.seek(have)
            out.truncate()
            _copy(response, out, have, total, source, watch)
            out.flush()
            os.fsync(out.fileno())


def _open(source: Source, have: int, known: dict[str, Any], path: Path) -> HTTPResponse:
    request = urllib.request.Request(source.url, headers={"User-Agent": "llmkit", "Accept-Encoding": "identity"})
    for name, value in source.secret.items():
        request.add_unredirected_header(name, value)
    if have:
        request.add_header("Range", f"bytes={have}-")
        if known["validator"]:
            request.add_header("If-Range", known["validator"])
    try:
        response: HTTPResponse = _opener().open(request, timeout=TIMEOUT_S)
        return response
    except urllib.error.HTTPError as exc:
        exc.close()
        if exc.code == 416:
            _state_path(path).unlink(missing_ok=True)  # so the next attempt begins anew
        if exc.code in (408, 416, 425, 429) or exc.code >= 500:
            raise _RetryError(f"the server says {exc.code} {exc.reason}") from exc
        raise DownloadError(
            f"cannot fetch {shown_url(source.url)}: the server says {exc.code} {exc.reason}", _HINTS.get(exc.code, "")
        ) from exc


def _start(
    source: Source, response: HTTPResponse, have: int, known: dict[str, Any], path: Path
) -> tuple[int, int | None]:
    """How many of our bytes count, and the size of the file; a range that is not what we asked for is tried anew."""
    etag, changed = response.headers.get("ETag", ""), response.headers.get("Last-Modified", "")
    validator = etag if etag and not etag.startswith("W/") else changed
    if response.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        total = int(found[2]) if found and found[2] != "*" else None
        fits = found and int(found[1]) == have and known.get("total") in (None, total)
        if not fits or (validator and known.get("validator") and validator != known.get("validator")):
            _state_path(path).unlink(missing_ok=True)
            raise _RetryError("the server sent another part of the file than was asked for")
        return have, total
    length = response.headers.get("Content-Length")
    total = int(length) if length and length.isdecimal() else None
    if source.n_bytes is not None and total is not None and total != source.n_bytes:
        raise DownloadError(
            f"{shown_url(source.url)} has {total} bytes where {source.n_bytes} were announced", "nothing was kept"
        )
    path.write_bytes(b"")
    _write_state(source, path, validator, total)
    return 0, total


def _copy(response: HTTPResponse, out: IO[bytes], have: int, total: int | None, source: Source, watch: Watch) -> None:
    while chunk := _read(response):
        if have == 0 and chunk[:4] != b"GGUF":
            finding = sniff(chunk[:4096], total or len(chunk))
            raise DownloadError(f"{shown_url(source.url)} is no GGUF: it is {finding.what}", finding.hint)
        out.write(chunk)
        have += len(chunk)
        watch(have, total)
    if total is not None and have != total:
        raise _RetryError(f"the connection ended after {have} of {total} bytes")
    if have == 0:
        raise DownloadError(f"{shown_url(source.url)} is empty")


def _read(response: HTTPResponse) -> bytes:
    """The next bytes; an error of the connection must not be taken for one of the disk."""
    try:
        return response.read(CHUNK_BYTES)
    except OSError as exc:
        raise _RetryError(_reason(exc)) from exc


def _check_room(path: Path, total: int | None, have: int) -> None:
    n_needed = (total or 0) - have + SPARE_BYTES
    n_free = shutil.disk_usage(path.parent).free
    if n_free < n_needed:
        raise CacheError(
            f"not enough room in {path.parent}: {n_needed / 1e6:.0f} MB are needed, {n_free / 1e6:.0f} MB are free",
            "make room (`llmkit cache prune`), or set LLMKIT_CACHE to a folder on a larger disk",
        )


def _state_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _write_state(source: Source, path: Path, validator: str, total: int | None) -> None:
    state = {"file": source.sha256 or source.url, "validator": validator, "total": total}
    if validator or source.sha256:
        _state_path(path).write_text(json.dumps(state))
    else:
        _state_path(path).unlink(missing_ok=True)


def _read_state(source: Source, path: Path) -> dict[str, Any]:
    """What the bytes in `path` are of, or {} when they are of no use."""
    with suppress(OSError, ValueError, RecursionError):
        state = json.loads(_state_path(path).read_text())
        sound = isinstance(state, dict) and isinstance(state.get("validator"), str)
        if sound and state.get("file") == (source.sha256 or source.url):
            return state if isinstance(state.get("total"), int | None) else {}
    return {}


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to http and https alone, and never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://") and (req.type == "https" or not newurl.startswith("http://")):
            raise DownloadError(f"{shown_url(req.full_url)} redirects to {shown_url(newurl)}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_Redirects)
