"""The merges of a vocabulary as ids, kept in the user's cache: for SPM they are rebuilt with effort, and for all the
library need not be built when a text is short (0.3 s less for 150,000 merges, 0.9 s for gemma-3's).

Owns one kind of file, named by what it was made from. Everything in it is checked when it is read, and anything wrong
(cut off, changed, somebody else's, of another version, no file at all) means only that the merges are rebuilt and
written again. A cache that cannot be written to is no error.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

_MAGIC = b"llmkit merges 2\n"
"""Change the number when spm_merges.py gives other merges for the same vocabulary, or the format changes."""

_DIGEST_BYTES = 16
_MAX_BYTES = 1 << 28


def merges_key(*parts: bytes | memoryview) -> str:
    """A name for what was made from `parts` by this version."""
    digest = hashlib.blake2b(_MAGIC, digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def read_merges(folder: Path, key: str, n_vocab: int) -> npt.NDArray[np.int32] | None:
    """The merges kept under `key` (int32 [n_merges, 3]: left, right, joined; ids below `n_vocab`), or None."""
    raw = _read(folder / f"{key}.merges")
    head = _MAGIC + bytes.fromhex(key)
    if raw is None or not raw.startswith(head) or raw[-_DIGEST_BYTES:] != _digest(raw[:-_DIGEST_BYTES]):
        return None
    body = raw[len(head) : -_DIGEST_BYTES]
    if len(body) % 12:
        return None
    merges = np.frombuffer(body, dtype="<i4").reshape(-1, 3).astype(np.int32)
    inside = merges.size == 0 or (merges.min() >= 0 and merges.max() < n_vocab)
    return merges if inside else None


def write_merges(folder: Path, key: str, merges: npt.NDArray[np.int32]) -> None:
    """Keeps the merges; does nothing when that cannot be done. Other processes see the whole file or none."""
    raw = _MAGIC + bytes.fromhex(key) + merges.astype("<i4").tobytes()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{key}.", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(raw + _digest(raw))
            os.replace(temporary, folder / f"{key}.merges")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _read(path: Path) -> bytes | None:
    """The bytes of a regular file of a sensible size; None for anything else."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            usable = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
            return file.read() if usable else None
    except OSError:
        return None


def _without_waiting(path: str, flags: int) -> int:
    """Opening a FIFO would wait for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest()
