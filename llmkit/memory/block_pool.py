"""Blocks of 32 cells: numbered, addressed by pointer, ref-counted. Knows nothing of what a cell holds.

They lie in one arena, which is reserved address space (the system commits a page when it is first written), or in a
mapped file. A number whose block is mapped keeps its place in the arena: who may write the block moves it there first.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llmkit.errors import ContextFullError

BLOCK_CELLS = 32
ALIGNMENT = 64  # bytes: what kernels want of a block's address
POISON = (
    "LLMKIT_POISON"  # tests set this variable: blocks are full of NaN when they are handed out first, and when freed
)

Blocks = npt.NDArray[np.int64]

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform.startswith("linux") else 0)


class BlockPool:
    """`n_blocks` blocks of `block_bytes` bytes each (a multiple of 64).

    addresses: int64 [n_blocks], what kernels read. Invariant: a block is free exactly when no sequence references it.
    """

    def __init__(self, block_bytes: int, n_blocks: int) -> None:
        self.block_bytes, self.n_blocks = block_bytes, n_blocks
        self._arena = self._reserve(block_bytes * n_blocks)
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._arena, np.uint8)
        self.addresses = self.data.ctypes.data + np.arange(n_blocks, dtype=np.int64) * block_bytes
        self._n_refs = np.zeros(n_blocks, np.int32)
        self._places = self.addresses.copy()  # in the arena; a block whose address is another lies in a file
        self._mapped: dict[int, npt.NDArray[np.uint8]] = {}  # its bytes, which keep the map alive
        self._free: list[int] = []  # freed blocks; those from _n_touched on were never handed out
        self._n_touched = 0
        self._poison = bool(os.environ.get(POISON))
        self.n_peak = 0

    @staticmethod
    def _reserve(n_bytes: int) -> mmap.mmap:
        try:
            return mmap.mmap(-1, max(n_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        except (OSError, ValueError, OverflowError) as error:
            message = f"cannot reserve {n_bytes / 2**30:.1f} GiB of memory for the KV cache"
            raise ContextFullError(message, "choose a smaller context (-c)") from error

    @property
    def n_free(self) -> int:
        return len(self._free) + self.n_blocks - self._n_touched

    @property
    def n_used(self) -> int:
        return self.n_blocks - self.n_free

    def n_refs(self, block: int) -> int:
        """How many sequences and holders reference the block."""
        return int(self._n_refs[block])

    def n_refs_of(self, blocks: Blocks) -> npt.NDArray[np.int32]:
        """The same of each of these blocks."""
        counts: npt.NDArray[np.int32] = self._n_refs[blocks]
        return counts

    def check_room(self, n: int) -> None:
        """ContextFullError when fewer than `n` blocks are free."""
        if n > self.n_free:
            message = (
                f"the KV cache is full: {n} more blocks of {BLOCK_CELLS} tokens are needed, {self.n_free} are free"
            )
            raise ContextFullError(message, "choose a larger context (-c)")

    def allocate(self, n: int) -> list[int]:
        """Takes `n` free blocks, each with one reference; ContextFullError, and nothing taken, when there are fewer."""
        if n == 0:
            return []
        self.check_room(n)
        blocks = [self._take() for _ in range(n)]
        self._n_refs[blocks] = 1
        self.n_peak = max(self.n_peak, self.n_used)
        return blocks

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        self._n_touched += 1
        if self._poison:
            self._fill_with_nan(self._n_touched - 1)
        return self._n_touched - 1

    # -- blocks of mapped files -----------------------------------------------------------------------------------

    def attach(self, views: Sequence[npt.NDArray[np.uint8]]) -> list[int]:
        """Takes a free number for each of these blocks of a mapped file (uint8 [block_bytes], aligned to 64 bytes).

        They have one reference each, and their bytes stay where they are: the map ends when nobody uses a view of it.
        ContextFullError, and nothing taken, when fewer are free.
        """
        blocks = self.allocate(len(views))
        for block, view in zip(blocks, views, strict=True):
            assert view.nbytes == self.block_bytes
            assert view.ctypes.data % ALIGNMENT == 0
            self._mapped[block] = view
            self.addresses[block] = view.ctypes.data
        return blocks

    def make_writable(self, blocks: Blocks) -> None:
        """Moves those of these blocks that lie in a file into the arena. Their numbers stay; it takes no free one."""
        for block in self._mapped_of(blocks):
            start = block * self.block_bytes
            self.data[start : start + self.block_bytes] = self._mapped[block]
            self.addresses[block] = self._places[block]
            self._mapped.pop(block, None)

    def _mapped_of(self, blocks: Blocks) -> list[int]:
        """Those of these blocks that lie in a file. By their addresses: a change of one is whole or not begun."""
        if not self._mapped:
            return []
        found: list[int] = blocks[self.addresses[blocks] != self._places[blocks]].tolist()
        return found

    def view(self, block: int) -> npt.NDArray[np.uint8]:
        """The bytes of a block, uint8 [block_bytes]; those of a mapped one are read-only."""
        if self.addresses[block] != self._places[block]:
            return self._mapped[block]
        return self.data[block * self.block_bytes : (block + 1) * self.block_bytes]

    @property
    def n_mapped(self) -> int:
        """How many blocks lie in mapped files."""
        return int((self.addresses != self._places).sum())

    # -- references -----------------------------------------------------------------------------------------------

    def retain(self, blocks: Blocks) -> None:
        """Adds a reference to each of these blocks, which are all different."""
        assert (self._n_refs[blocks] > 0).all(), "a free block has no owner to share it"
        self._n_refs[blocks] += 1

    def release(self, blocks: Blocks) -> None:
        """Drops a reference of each of these blocks, which are all different; the last one frees a block."""
        left = self._n_refs[blocks] - 1
        assert (left >= 0).all(), "released more often than referenced"
        self._n_refs[blocks] = left
        self._free_all(blocks[left == 0])

    def _free_all(self, blocks: Blocks) -> None:
        for block in self._mapped_of(blocks):
            self.addresses[block] = self._places[block]
            self._mapped.pop(block, None)
        self._free += reversed(blocks.tolist())
        if self._poison:
            for block in blocks:
                self._fill_with_nan(int(block))

    def set_references(self, n_refs: npt.NDArray[np.int32]) -> None:
        """Sets how often each block is referenced, and thereby which are free."""
        self._n_refs[:] = n_refs
        self._free = []
        self._free_all(np.flatnonzero(n_refs[: self._n_touched] == 0))

    def copy(self, sources: Blocks, targets: Blocks) -> None:
        """Copies whole blocks; targets lie in the arena."""
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self.view(target)[:] = self.view(source)

    # -- for tests: whatever a result wrongly takes from elsewhere shows -------------------------------------------

    def shuffle(self, seed: int) -> None:
        """Hands out free blocks in a random order from now on."""
        self._free += range(self._n_touched, self.n_blocks)
        self._n_touched = self.n_blocks
        np.random.default_rng(seed).shuffle(self._free)

    def poison(self, on: bool) -> None:
        """Fills blocks with NaN (in float16 and float32 alike) when they are freed, and the free ones now."""
        self._poison = on
        if on:
            for block in [*self._free, *range(self._n_touched, self.n_blocks)]:
                self._fill_with_nan(block)

    def _fill_with_nan(self, block: int) -> None:
        self.data[block * self.block_bytes : (block + 1) * self.block_bytes] = 0xFF
