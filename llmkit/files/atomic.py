"""Writing a file so that it is there whole or not at all."""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import OutputError
from .gguf_cursor import shown


def write_atomic(path: Path, data: bytes) -> None:
    """Writes to a temporary name beside it, then renames. OSError passes through; nothing half-written is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextmanager
def finished_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write that takes `path`'s place when the block ends, and leaves nothing when it fails.

    A link is followed: what it points to is replaced. Raises OutputError for every OSError of the block or of ours, and
    when something is there that must not be replaced: a directory, a device, a file that is read-only.
    """
    real = Path(os.path.realpath(path))
    temporary = real.with_name(f".{real.name[:200]}.{secrets.token_hex(4)}.tmp")
    try:
        _check_replaceable(real, shown(path, 300))
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, real)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{shown(path, 300)}: cannot be written: {error.strerror}",
            "Check the free space and the permissions there.",
        ) from error


def check_can_write(path: str | os.PathLike[str]) -> None:
    """OutputError where `finished_file` could not put a file: to be asked before long work."""
    real, place = Path(os.path.realpath(path)), shown(path, 300)
    try:
        _check_replaceable(real, place)
    except OSError as error:
        raise OutputError(f"{place}: cannot be written: {error.strerror}", "Check the path.") from error
    if not real.parent.is_dir() or not os.access(real.parent, os.W_OK | os.X_OK):
        reason = "may not be written to" if real.parent.is_dir() else "is no directory"
        raise OutputError(f"{place}: cannot be written: {shown(real.parent, 300)} {reason}", "Give another name.")


def _check_replaceable(path: Path, place: str) -> None:
    """OutputError unless nothing is at `path`, or a regular file that somebody may write."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "no regular file"
        raise OutputError(f"{place}: is {what}, which cannot be replaced", "Give the name of the file to write.")
    if not mode & 0o222 or not os.access(path, os.W_OK):
        raise OutputError(f"{place}: is there and read-only", "Give another name, or make the file writable.")


def write_at(file: BinaryIO, data: Any, offset: int) -> None:
    """Write all of `data` (bytes, or the buffer of a C-contiguous array) at `offset`; several threads may at once."""
    view = memoryview(data).cast("B")
    while len(view):
        n = os.pwrite(file.fileno(), view, offset)
        view, offset = view[n:], offset + n
