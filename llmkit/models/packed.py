"""Where the tiles of a model's matrices live: a file in the user's cache, mapped and so shared by processes.

The file is made once for each model, under its fingerprint, by one process at a time. Small models, and caches that
cannot be written, are packed into memory instead. Layout: a page with magic, version, size and a checksum of the rest;
each matrix 4096-aligned, in order of names. A file is used when its checksum is right, which notices damage, and a tile
of each matrix equals one packed anew, which notices another layout; else it is made again.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from llmkit.errors import CacheError
from llmkit.files.cache_contents import PACKED_HEADER, PACKED_MAGIC
from llmkit.files.cache_dir import cache_root, locked
from llmkit.models.weights import Matrix
from llmkit.quants.pack import pack_tiles

VERSION = 1  # of the tiles' layout: raise it when any format's tile changes
PAGE = 4096
IN_MEMORY_BYTES = 16 << 20  # smaller models are not worth a file
_LINE = 64
_RUN = 64  # tiles that a thread packs before it reports progress
_CHECKSUM = struct.Struct("<Q")
_CHECKSUM_AT = 64  # in the first page
_PIECE = 16 << 20  # bytes that a thread sums up at a time

Progress = Callable[[int, int], None]


class PackedWeights:
    """Holds the memory behind `Matrix.packed`. `where` says in words what was done; `not_kept` why there is no file,
    "" if there is one or needs to be none."""

    def __init__(self, data: npt.NDArray[np.uint8], where: str, not_kept: str = "") -> None:
        self.data, self.where, self.not_kept = data, where, not_kept


def _layout(matrices: list[Matrix]) -> tuple[list[int], int]:
    """Offset of each matrix, and the size of all."""
    offsets, size = [], PAGE
    for matrix in matrices:
        offsets.append(size)
        size += -(-matrix.packed_bytes // PAGE) * PAGE
    return offsets, size


def load_packed(
    matrices: Iterable[Matrix], fingerprint: Callable[[], str], n_threads: int, progress: Progress | None = None
) -> PackedWeights:
    """Sets `packed` of all matrices: from the cached file, else by packing. `progress(done, total)` in bytes."""
    ordered = sorted(matrices, key=lambda matrix: matrix.name)
    n_threads = max(n_threads, 1)
    offsets, size = _layout(ordered)
    if size < IN_MEMORY_BYTES:
        return _pack_in_memory(ordered, offsets, size, n_threads, progress)
    path = cache_root() / "packed" / f"{fingerprint()}-{VERSION}.tiles"
    data, why = _sound(path, ordered, offsets, size, n_threads), "it is gone again"
    if data is None:
        try:
            with locked("packed"):
                data = _sound(path, ordered, offsets, size, n_threads)  # made by whoever had the lock
                if data is None:
                    _write(path, ordered, offsets, size, n_threads, progress)
                    data = _map(path, size, len(ordered))
        except (OSError, CacheError) as error:
            why = error.message if isinstance(error, CacheError) else f"{path.parent}: {error.strerror}"
    if data is None:
        return _pack_in_memory(ordered, offsets, size, n_threads, progress, why)
    _assign(ordered, offsets, data)
    return PackedWeights(data, f"mapped: {path}")


def _sound(
    path: Path, matrices: list[Matrix], offsets: list[int], size: int, n_threads: int
) -> npt.NDArray[np.uint8] | None:
    """The mapped file, if it is there, whole, and the middle tile of each matrix is what it should be."""
    data = _map(path, size, len(matrices))
    if data is None or _CHECKSUM.unpack_from(data.data, _CHECKSUM_AT) != (_checksum(data, n_threads),):
        return None
    for matrix, offset in zip(matrices, offsets, strict=True):
        n_bytes, number = matrix.packed_bytes // matrix.n_tiles, matrix.n_tiles // 2
        tile = np.empty(n_bytes + _LINE, np.uint8)
        tile = tile[-tile.ctypes.data % _LINE :][:n_bytes]
        _pack_tiles(matrix, tile.ctypes.data - number * n_bytes, number, number + 1)
        start = offset + number * n_bytes
        if not np.array_equal(tile, data[start : start + n_bytes]):
            return None
    return data


def _checksum(data: npt.NDArray[np.uint8], n_threads: int) -> int:
    """XXH3 of the XXH3s of all pieces behind the first page."""
    starts = range(PAGE, data.size, _PIECE)
    with ThreadPoolExecutor(n_threads) as pool:
        sums = list(pool.map(lambda start: xxhash.xxh3_64_digest(data[start : start + _PIECE].data), starts))
    return xxhash.xxh3_64_intdigest(b"".join(sums))


def _assign(matrices: list[Matrix], offsets: list[int], data: npt.NDArray[np.uint8]) -> None:
    for matrix, offset in zip(matrices, offsets, strict=True):
        matrix.packed = data.ctypes.data + offset


def _map(path: Path, size: int, n_matrices: int) -> npt.NDArray[np.uint8] | None:
    """The file, if it is whole and of this version."""
    try:
        with path.open("rb") as file:
            header = file.read(PACKED_HEADER.size)
            if (
                header != PACKED_HEADER.pack(PACKED_MAGIC, VERSION, size, n_matrices)
                or os.fstat(file.fileno()).st_size != size
            ):
                return None
            return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError):
        return None


def _pack_in_memory(
    matrices: list[Matrix], offsets: list[int], size: int, n_threads: int, progress: Progress | None, why: str = ""
) -> PackedWeights:
    data = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    _pack(matrices, offsets, data, n_threads, progress)
    _assign(matrices, offsets, data)
    return PackedWeights(data, f"in memory: {why or 'small'}", why)


def _write(
    path: Path, matrices: list[Matrix], offsets: list[int], size: int, n_threads: int, progress: Progress | None
) -> None:
    """Packs into a temporary file beside `path` and renames it; OSError when there is no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    if shutil.disk_usage(path.parent).free < size + (64 << 20):
        raise OSError(28, "no space for the packed weights")
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(descriptor, "r+b") as file:
            _reserve(file.fileno(), size)
            mapped = mmap.mmap(file.fileno(), size)
            data = np.frombuffer(mapped, np.uint8)
            _pack(matrices, offsets, data, n_threads, progress)
            _CHECKSUM.pack_into(data.data, _CHECKSUM_AT, _checksum(data, n_threads))
            data[: PACKED_HEADER.size] = np.frombuffer(
                PACKED_HEADER.pack(PACKED_MAGIC, VERSION, size, len(matrices)), np.uint8
            )
            mapped.flush()
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _reserve(descriptor: int, size: int) -> None:
    """Takes the disk space now: a write to a mapping of a full disk would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def _sweep(folder: Path) -> None:
    """Removes what killed processes left: whoever writes here holds the lock."""
    for file in folder.glob(".tmp-*"):
        with suppress(OSError):
            file.unlink()


def _pack(
    matrices: list[Matrix], offsets: list[int], data: npt.NDArray[np.uint8], n_threads: int, progress: Progress | None
) -> None:
    """Packs all matrices, runs of tiles on all threads."""
    address, total, done = data.ctypes.data, sum(matrix.packed_bytes for matrix in matrices), 0
    runs = [
        (matrix, offset, first)
        for matrix, offset in zip(matrices, offsets, strict=True)
        for first in range(0, matrix.n_tiles, _RUN)
    ]
    with ThreadPoolExecutor(n_threads) as pool:
        for n in pool.map(lambda run: _pack_run(run[0], address + run[1], run[2]), runs):
            done += n
            if progress:
                progress(done, total)


def _pack_run(matrix: Matrix, target: int, first: int) -> int:
    """Packs up to _RUN tiles; the bytes written."""
    last = min(first + _RUN, matrix.n_tiles)
    _pack_tiles(matrix, target, first, last)
    return (last - first) * matrix.packed_bytes // matrix.n_tiles


def _pack_tiles(matrix: Matrix, target: int, first: int, last: int) -> None:
    """Packs tiles first .. last to where they lie in a matrix that starts at `target`."""
    kind = matrix.type
    pack_tiles(
        kind.pack, matrix.raw, kind.row_bytes(matrix.n_cols), kind.block_bytes, target, kind.tile_bytes,
        matrix.n_cols // kind.tile_block, matrix.n_rows, first, last,
    )  # fmt: skip
