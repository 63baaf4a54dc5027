"""The per-user cache: where it is, its sub-folders, and locks between processes.

Owns the place ($LLMKIT_CACHE, else the platform's cache folder) and the names below it: models/ (fetched), packed/,
kernels/, tokenizers/ (made by us, may be deleted at any time). Knows nothing about what lies in them.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from llmkit.errors import CacheError

CACHE_HINT = "set LLMKIT_CACHE to a folder that can be written to"


def cache_root() -> Path:
    """The cache folder, absolute; nothing is created."""
    chosen = os.environ.get("LLMKIT_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("llmkit", appauthor=False)


def sub_dir(name: str) -> Path:
    """The cache's folder `name`, created when absent; CacheError when that cannot be done."""
    path = cache_root() / name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise CacheError(f"cannot create the cache folder {path}: {exc.strerror}", CACHE_HINT) from exc
    return path


@contextmanager
def locked(name: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock `name` of this cache; while another process holds it, call `on_wait` once and wait.

    The lock ends with the process, however that ends. Its file stays: deleting it would split the lock in two.
    CacheError when the folder cannot be written to or its file system has no locks.
    """
    path = sub_dir("locks") / f"{name}.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise CacheError(f"cannot write to the cache: {path}: {exc.strerror}", CACHE_HINT) from exc
    try:
        _lock(fd, path, on_wait)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, path: Path, on_wait: Callable[[], None]) -> None:
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as exc:
        raise CacheError(f"cannot lock {path}: {exc.strerror}", CACHE_HINT) from exc
