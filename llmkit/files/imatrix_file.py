"""Importance matrices on disk: GGUF, and the older `.dat` of llama.cpp; both are read and written.

Owns the two layouts and the refusal of what is no sound file. Knows nothing about what the numbers are used for, nor
which tensors a model has. Layouts: llama.cpp b11434, tools/imatrix and common/imatrix-loader.
"""

import mmap
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ImatrixError, ModelNotFoundError
from .atomic import finished_file
from .gguf_cursor import DAMAGED, Cursor, shown
from .gguf_reader import MAGIC, GgufFile, open_gguf
from .gguf_writer import TensorData, write_gguf

KEYS = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")
_SUMS, _COUNTS = ".in_sum2", ".counts"
_F32 = 0

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ImatrixEntry:
    """What was collected for one tensor's input.

    sums: float32 [n_mat, n_per_row], the sum of the squares of each column, a row for each expert. counts: float32
    [n_mat], how many rows were summed; in a legacy file [1], the number of calls, and sums are scaled to match.
    """

    sums: Floats
    counts: Floats


@dataclass(frozen=True)
class Imatrix:
    """A whole importance matrix, by name of weight; chunk_size in tokens, 0 where the file does not say."""

    entries: Mapping[str, ImatrixEntry]
    datasets: list[str] = field(default_factory=list)
    n_chunks: int = 0
    chunk_size: int = 0
    is_legacy: bool = False


def read_imatrix(path: str | os.PathLike[str]) -> Imatrix:
    """Read a file of either kind.

    Raises ImatrixError when it is neither or holds nothing, ModelNotFoundError when it is not there, and what
    `open_gguf` raises for a damaged GGUF. Values are not looked at.
    """
    path = Path(path)
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            what = "a directory" if path.is_dir() else "a device or a pipe"
            raise ImatrixError(f"{shown(path, 300)}: is {what}, not a file", "Give the path of an importance matrix.")
        with open(path, "rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
    except FileNotFoundError:
        raise ModelNotFoundError(f"{shown(path, 300)}: there is no such file", "Check the path.") from None
    except OSError as error:
        raise ImatrixError(f"{shown(path, 300)}: cannot be read: {error.strerror}", "Check the path.") from error
    if not is_gguf:
        return _read_legacy(path)
    with open_gguf(path) as gguf:
        return _read_gguf(gguf)


def _read_gguf(gguf: GgufFile) -> Imatrix:
    missing = [key for key in KEYS if key not in gguf.entries]
    if missing:
        raise _no_imatrix(gguf.place, f"{', '.join(missing)} missing in its metadata")
    names = [name.removesuffix(_SUMS) for name in gguf.tensors if name.endswith(_SUMS)]
    names += [name.removesuffix(_COUNTS) for name in gguf.tensors if name.endswith(_COUNTS)]
    if not names:
        raise _no_imatrix(gguf.place, "it holds no data")
    entries = {name: _gguf_entry(gguf, name) for name in dict.fromkeys(names)}
    chunks, size = gguf.u32("imatrix.chunk_count"), gguf.u32("imatrix.chunk_size")
    return Imatrix(entries, list(gguf.strings("imatrix.datasets")), chunks, size)


def _gguf_entry(gguf: GgufFile, name: str) -> ImatrixEntry:
    for part in (_SUMS, _COUNTS):
        info = gguf.tensors.get(name + part)
        if info is None or info.type != _F32:
            what = "is missing" if info is None else f"is {info.type_name}; F32 is expected"
            raise _no_imatrix(gguf.place, f"{shown(name + part)} {what}")
    sums, counts = (gguf.tensor_bytes(name + part).view(np.float32).copy() for part in (_SUMS, _COUNTS))
    if sums.size % counts.size:
        raise _no_imatrix(gguf.place, f"{shown(name)} has {sums.size} sums for {counts.size} matrices")
    return ImatrixEntry(sums.reshape(counts.size, -1), np.rint(counts))


def _read_legacy(path: Path) -> Imatrix:
    """i32 count; each: i32 length, name, i32 calls, i32 n, n x f32; then maybe i32 chunks, i32 length, data set."""
    if path.stat().st_size < 4:
        raise _no_imatrix(shown(path, 300), "it has no entries")
    with open(path, "rb") as file:  # mapped: a large file of another kind must not be read whole to be refused
        cursor = Cursor(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), shown(path, 300))
    n_entries = _i32(cursor, "the number of entries")
    if n_entries < 1:
        raise _no_imatrix(cursor.place, "it has no entries")
    entries: dict[str, ImatrixEntry] = {}
    for i in range(n_entries):
        what = f"entry {i + 1} of {n_entries}"
        name = _text(cursor, f"the name of {what}")
        n_calls, n_values = _i32(cursor, f"the calls of {what}"), _i32(cursor, f"the size of {what}")
        if n_values < 1 or not name:
            raise _no_imatrix(cursor.place, f"{what} has {n_values} values and the name {shown(name)}")
        raw = _take(cursor, 4 * n_values, what)
        values = np.frombuffer(raw, dtype="<f4").astype(np.float32).reshape(1, -1)
        entries[name] = ImatrixEntry(values, np.array([n_calls], np.float32))
    n_chunks, datasets = 0, []
    if cursor.n_left >= 4:
        n_chunks = max(_i32(cursor, "the number of chunks"), 0)
        datasets = [_text(cursor, "the data set")] if cursor.n_left >= 4 else []
    return Imatrix(entries, [name for name in datasets if name], n_chunks, 0, is_legacy=True)


def _take(cursor: Cursor, n_bytes: int, what: str) -> memoryview:
    if not 0 <= n_bytes <= cursor.n_left:
        raise _no_imatrix(cursor.place, f"{what} takes {n_bytes} bytes and {cursor.n_left} are left")
    cursor.pos += n_bytes
    return cursor.data[cursor.pos - n_bytes : cursor.pos]


def _i32(cursor: Cursor, what: str) -> int:
    return int(struct.unpack("<i", _take(cursor, 4, what))[0])


def _text(cursor: Cursor, what: str) -> str:
    return bytes(_take(cursor, _i32(cursor, f"the length of {what}"), what)).decode(errors="replace")


def _no_imatrix(place: str, reason: str) -> ImatrixError:
    return ImatrixError(f"{place}: is no importance matrix: {reason}", DAMAGED)


def write_imatrix(path: str | os.PathLike[str], imatrix: Imatrix) -> None:
    """Write a GGUF file, or with `is_legacy` the older kind; names in order. Raises OutputError.

    Legacy: a tensor's mean squares times its calls; `counts` of more than one matrix are taken out of each, and the
    calls are chunks of the matrix that has most (a matrix that saw nothing gets ones, a tensor that saw nothing is left
    out).
    """
    if imatrix.is_legacy:
        with finished_file(path) as file:
            file.write(_legacy_bytes(imatrix))
        return
    metadata: dict[str, object] = {
        "general.type": "imatrix",
        "imatrix.datasets": list(imatrix.datasets),
        "imatrix.chunk_count": np.uint32(imatrix.n_chunks),
        "imatrix.chunk_size": np.uint32(imatrix.chunk_size),
    }
    tensors = []
    for name, entry in sorted(imatrix.entries.items()):
        n_mat, n_columns = entry.sums.shape
        tensors.append(TensorData(name + _SUMS, (n_columns, n_mat), _F32, entry.sums))
        tensors.append(TensorData(name + _COUNTS, (1, n_mat), _F32, entry.counts))
    write_gguf(path, metadata, tensors)


def _legacy_bytes(imatrix: Imatrix) -> bytes:
    stored = [(name, entry) for name, entry in sorted(imatrix.entries.items()) if entry.counts.max() > 0]
    parts = [struct.pack("<i", len(stored))]
    for name, entry in stored:
        n_calls, values = _legacy_values(entry, imatrix.chunk_size)
        parts += [_legacy_text(name), struct.pack("<ii", n_calls, values.size), values.astype("<f4").tobytes()]
    dataset = imatrix.datasets[-1] if imatrix.datasets else ""
    return b"".join([*parts, struct.pack("<i", imatrix.n_chunks), _legacy_text(dataset)])


def _legacy_values(entry: ImatrixEntry, chunk_size: int) -> tuple[int, NDArray[Any]]:
    if not chunk_size:  # came from a legacy file: already in calls
        return int(entry.counts[0]), entry.sums
    n_calls = -(-int(entry.counts.max()) // chunk_size)
    counts = entry.counts[:, None]
    means = np.where(counts > 0, entry.sums / np.maximum(counts, 1), np.float32(1))
    return n_calls, means * np.float32(n_calls)


def _legacy_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<i", len(raw)) + raw
