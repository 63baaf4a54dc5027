"""State files: keys and values of sequences with all that is needed to go on. Written whole or not at all; mapped.

Owns the file: opening what may be hostile, checksums of blocks, compression. What the header says is state_header's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import zstandard

from llmkit.errors import OutputError
from llmkit.files.atomic import finished_file
from llmkit.files.gguf_cursor import shown
from llmkit.files.map_file import map_file
from llmkit.files.pages import done_with, will_need
from llmkit.files.state_decode import decode, read_preamble
from llmkit.files.state_errors import NotAStateError, StateError, StateTruncatedError, damaged
from llmkit.files.state_header import BLOCK, MAX_TOKENS, PREAMBLE, Header, KindRecord, aligned, checksum

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_GROUP = 64  # blocks that are handed to the system, or compressed, at a time
_PARALLEL = 1 << 26  # bytes: from here on two threads check sums
_LEVEL = 3


def write_state(
    path: str | os.PathLike[str], header: Header, blocks: Sequence[Iterable[Bytes]], logits: Sequence[Floats] = ()
) -> int:
    """Writes a file; its size in bytes. The header's sizes, offsets and checksums are filled in.

    blocks: those of each kind, in order, as many as `header.kinds[k].blocks` has rows. logits: of the sequences that
    have them, in order. OutputError, and what was at `path` still there, when it cannot be written.
    """
    if sum(seq.n_tokens for seq in header.sequences) > MAX_TOKENS:
        raise OutputError(f"{shown(path, 300)}: a state file holds at most {MAX_TOKENS} tokens", "save fewer sequences")
    for kind in header.kinds:
        kind.blocks["n_bytes"] = kind.block_bytes
    with finished_file(path) as file:
        end = header.place()
        for kind, data in zip(header.kinds, blocks, strict=True):
            kind.offset = aligned(end)
            file.seek(kind.offset)
            _write_blocks(file, kind, data, compress=header.compressed)
            end = kind.offset + kind.n_bytes
        with_logits = [seq for seq in header.sequences if seq.has_logits]
        if with_logits:
            file.seek(header.logits_offset(end))
        for seq, row in zip(with_logits, logits, strict=True):
            floats = np.ascontiguousarray(row, "<f4").tobytes()
            seq.logits_checksum = checksum(floats)
            file.write(floats)
        header.place()
        file.flush()
        os.ftruncate(file.fileno(), header.n_bytes)  # a file whose last blocks are empty ends behind them
        file.seek(0)
        file.write(header.encode())
    return header.n_bytes


def _write_blocks(file: BinaryIO, kind: KindRecord, data: Iterable[Bytes], *, compress: bool) -> None:
    """Writes blocks from where the file stands, and their sizes and checksums into the kind's table."""
    done, rest = 0, iter(data)
    file.flush()
    with ThreadPoolExecutor(2) if compress else nullcontext() as pool:
        while group := list(islice(rest, _GROUP)):
            stored: list[Any] = list(pool.map(_compressed, group)) if pool is not None else group
            for i, block in enumerate(stored, done):
                kind.blocks[i] = len(block), checksum(block)
            _write_all(file.fileno(), stored)
            done += len(group)
    assert done == kind.blocks.size


def _compressed(block: Bytes) -> Any:
    """A frame, or the block where that is no smaller."""
    frame = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(block.data)
    return frame if len(frame) < len(block) else block


def _write_all(descriptor: int, buffers: list[Any]) -> None:
    """Writes all of these, without copying them first."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    while views:
        n = os.writev(descriptor, views)
        while views and n >= len(views[0]):
            n -= len(views.pop(0))
        if n:
            views[0] = views[0][n:]


# -- reading ------------------------------------------------------------------------------------------------------


class StateFile:
    """An open state file whose header has been checked. As a context manager it closes the file; maps stay."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = shown(path, 300)
        self._descriptor = open_regular(path, self.path)
        self._data: Bytes | None = None
        try:
            n_bytes = os.fstat(self._descriptor).st_size
            header_bytes = read_preamble(self._read(PREAMBLE.size, n_bytes), n_bytes, self.path)
            self.header = decode(self._read(header_bytes, n_bytes), self.path)
        except BaseException:
            self.close()
            raise

    def _read(self, n: int, n_bytes: int) -> bytes:
        """The first n bytes."""
        parts, done = [], 0
        while done < min(n, n_bytes):
            part = os.pread(self._descriptor, n - done, done)
            if not part:
                raise StateTruncatedError(f"{self.path}: the state file became shorter while it was read")
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def __enter__(self) -> StateFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file, once or again. Blocks that were taken from it stay mapped."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._data = -1, None

    @property
    def data(self) -> Bytes:
        """All of the file, mapped for reading, uint8 [n_bytes]. The map ends with the last view of it."""
        if self._data is None:
            try:
                self._data = map_file(self._descriptor, self.header.n_bytes)
            except OSError as error:
                raise StateError(f"{self.path}: cannot be mapped: {error.strerror}", "free some memory") from error
        return self._data

    def stored(self, k: int) -> Iterator[Bytes]:
        """The blocks of a kind as the file has them: uint8 [block_bytes] each, or less where compressed."""
        kind = self.header.kinds[k]
        ends = kind.offset + np.cumsum(kind.blocks["n_bytes"]).astype(np.int64)
        begin = kind.offset
        for end in ends.tolist():
            yield self.data[begin:end]
            begin = end

    def verify(self, n_threads: int = 1) -> None:
        """Compares every checksum; StateDamagedError names the first block that is not what was written.

        The pages that this touches are let go again: they stay in the system's cache.
        """
        data = self.data
        will_need(data)
        blocks = [(k, i, block) for k in range(len(self.header.kinds)) for i, block in enumerate(self.stored(k))]
        try:
            self._check_gaps()
            if n_threads > 1 and data.size >= _PARALLEL:
                with ThreadPoolExecutor(n_threads) as pool:
                    list(pool.map(lambda block: self._check_block(*block), blocks))
            else:
                for block in blocks:
                    self._check_block(*block)
            for i in range(len(self.header.sequences)):
                self.logits(i)
        finally:
            done_with(data)

    def _check_block(self, k: int, i: int, block: Bytes) -> None:
        if checksum(block) != int(self.header.kinds[k].blocks[i]["checksum"]):
            raise damaged(self.path, f"the checksum of block {i} of kind {k} is wrong")

    def _check_gaps(self) -> None:
        """The bytes between the header and the blocks of each kind are zero."""
        header, data = self.header, self.data
        end = int(PREAMBLE.unpack(bytes(data[: PREAMBLE.size]))[4])
        starts = [kind.offset for kind in header.kinds] + [header.logits_offset()] * bool(header.n_with_logits)
        for start, n_bytes in zip(starts, [*(kind.n_bytes for kind in header.kinds), 0][: len(starts)], strict=True):
            if data[end:start].any():
                raise damaged(self.path, "the space between two runs of blocks is not empty")
            end = start + n_bytes

    def logits(self, index: int) -> Floats | None:
        """The logits of the last token of the sequence at this place of the header, float32 [n_logits]; or None."""
        seq = self.header.sequences[index]
        if not seq.has_logits:
            return None
        before = sum(other.has_logits for other in self.header.sequences[:index])
        n = 4 * self.header.n_logits
        start = self.header.logits_offset() + before * n
        data = self.data[start : start + n].tobytes()
        if checksum(data) != seq.logits_checksum:
            raise damaged(self.path, f"the checksum of the logits of sequence {seq.id} is wrong")
        return np.frombuffer(data, "<f4").astype(np.float32)

    def decompress(self, k: int, block: Bytes) -> Bytes:
        """A stored block of a compressed file as it was; StateDamagedError when that is not a block's size."""
        n = self.header.kinds[k].block_bytes
        if block.size == n:
            return block
        try:
            if zstandard.frame_content_size(block.data) != n:
                raise damaged(self.path, "a compressed block has another size than the rest")
            data = zstandard.ZstdDecompressor().decompress(block.data, max_output_size=n, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise damaged(self.path, f"a block cannot be decompressed: {error}") from error
        return np.frombuffer(data, np.uint8)


def open_regular(path: str | os.PathLike[str], place: str) -> int:
    """A descriptor of a regular file; NotAStateError for all else, which is never waited for."""
    try:
        flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(Path(path), flags)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise NotAStateError(f"{place}: cannot be opened: {reason}", "check the path") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    what = "a directory" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "no regular file"
    raise NotAStateError(f"{place}: is {what}, no state file", "give a file that `llmkit state save` wrote")


def new_blocks(n: int) -> npt.NDArray[Any]:
    """An empty table of blocks."""
    return np.zeros(n, BLOCK)
