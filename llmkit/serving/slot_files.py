"""Names of slot files: what a client may call a file in the folder of `--slot-save-path`, and what may lie there.

Owns that nothing outside the folder is ever read or written, whatever a name holds and whatever lies under it.
"""

import os
import re
import stat
from pathlib import Path

from llmkit.errors import UsageError
from llmkit.serving.errors import ApiError, bad_request

MAX_NAME = 255
_SOUND = re.compile(r"[^/\\\0-\x1f\x7f:*?\"<>|]+")
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(10))}


def check_folder(path: str) -> str:
    """The folder itself, with links followed once, at the start; UsageError if it is none."""
    folder = os.path.realpath(path)
    if not os.path.isdir(folder):
        raise UsageError(f"--slot-save-path {path} is no folder", "Make it first.")
    return folder


def slot_path(folder: str, name: str | None) -> Path:
    """The file that a name means; 400 for one that is no plain name."""
    if name is None:
        raise bad_request("Field 'filename': it is missing")
    plain = _SOUND.fullmatch(name) and name not in (".", "..") and not name.startswith(".")
    if not plain or len(name.encode("utf-8", "replace")) > MAX_NAME - 16 or name != name.strip():
        raise bad_request("Invalid filename")
    if name.split(".")[0].lower() in _DEVICES or name.endswith("."):
        raise bad_request("Invalid filename")
    return Path(folder) / name


def check_readable(path: Path) -> None:
    """400 unless a plain file lies there: no link, no pipe, no folder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise _unable() from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _unable()
    finally:
        os.close(fd)


def _unable() -> ApiError:
    return bad_request("Unable to restore slot: there is no such slot save file")


def check_writable(path: Path, magics: tuple[bytes, ...]) -> None:
    """400 if something lies there that no server saved: it is not replaced."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError:
        raise bad_request("Invalid filename: something else than a slot file lies there") from None
    try:
        ours = stat.S_ISREG(os.fstat(fd).st_mode) and os.read(fd, 16).startswith(magics)
    finally:
        os.close(fd)
    if not ours:
        raise bad_request("Invalid filename: something else than a slot file lies there")
