"""Puts the files of a model from an address into the cache: all of them whole and checked, or none.

Owns the folder of such a model, models/NAME/, and the hidden folder in it where files grow. They stay there when a pull
is interrupted, and the next pull goes on with them. Where the files are is decided by url_source.py and hub.py.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from llmkit.errors import CacheError, DownloadError, LlmkitError, ModelNotFoundError, UnsupportedError
from llmkit.files.cache_dir import CACHE_HINT, cache_root, locked, sub_dir
from llmkit.files.gguf_reader import open_gguf
from llmkit.files.http_fetch import Source, Watch, fetch, shown_url

PARTIAL = ".partial"
FULL_DISK_HINT = "make room (`llmkit cache prune`), or set LLMKIT_CACHE to a folder on a larger disk"


def place_of(folder: str) -> Path:
    """Where the files of a model from an address are, or would be."""
    return cache_root() / "models" / folder


def pull_staged(
    folder: str,
    sources: Sequence[Source],
    watch: Watch = lambda n, total: None,
    on_wait: Callable[[], None] = lambda: None,
) -> Path:
    """Fetch what is not there yet, and return the path of the first file, which is the one to open.

    Files that are there and have the SHA-256 of their source, or need to have none, are kept. DownloadError when one
    cannot be fetched, has another SHA-256, or they are no GGUF; CacheError when the cache cannot take them.
    """
    sub_dir(os.path.join("models", folder))
    with locked(f"model-{folder}", on_wait):
        place = sub_dir(os.path.join("models", folder))
        try:
            missing = [source for source in sources if not _is_there(place / source.name, source)]
            if missing:
                _fetch_all(place, sources if len(sources) > 1 else missing, watch)
        except OSError as exc:
            hint = FULL_DISK_HINT if exc.errno in (errno.ENOSPC, errno.EDQUOT) else CACHE_HINT
            raise CacheError(f"cannot write the model into {place}: {exc.strerror or exc}", hint) from exc
        return place / sources[0].name


def remove_pulled(folder: str, paths: Sequence[Path]) -> int:
    """Delete pulled files, and the folder when no model is left in it; the bytes freed."""
    with locked(f"model-{folder}"):
        there = [path for path in paths if path.exists()]
        if not there:
            raise ModelNotFoundError("the model is not in the cache", "`llmkit cache list models` shows what is")
        n_bytes = sum(path.stat().st_size for path in there)
        try:
            for path in there:
                path.unlink()
            if not any(place_of(folder).rglob("*.gguf")):
                shutil.rmtree(place_of(folder))
        except OSError as exc:
            raise CacheError(f"cannot delete {exc.filename}: {exc.strerror}", CACHE_HINT) from exc
        return n_bytes


def _is_there(path: Path, source: Source) -> bool:
    if not path.is_file() or (source.n_bytes is not None and path.stat().st_size != source.n_bytes):
        return False
    return not source.sha256 or _sha256(path) == source.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_all(place: Path, sources: Sequence[Source], watch: Watch) -> None:
    """Parts of one model come together, so that they are checked and appear together."""
    partial = place / PARTIAL
    for source in sources:
        grown = partial / source.name
        grown.parent.mkdir(parents=True, exist_ok=True)
        fetch(source, grown, watch)
        if source.sha256 and (found := _sha256(grown)) != source.sha256:
            _discard(partial)
            raise DownloadError(
                f"{shown_url(source.url)} has SHA-256 {found}, expected {source.sha256}", "nothing was kept"
            )
    try:
        _check(partial / sources[0].name)
    except LlmkitError as exc:
        _discard(partial)
        raise DownloadError(f"what was fetched is no sound GGUF: {exc.message}", "nothing was kept") from exc
    for source in reversed(sources):  # the first part is what makes the model be there
        (place / source.name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial / source.name, place / source.name)
    _discard(partial)


def _check(path: Path) -> None:
    with suppress(UnsupportedError), open_gguf(path):  # a tensor type that a later llmkit knows is no damage
        pass


def _discard(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
