"""Blocks of 32 cells in one arena: numbered, addressed by pointer, ref-counted. Knows nothing of what a cell holds.

The arena is reserved address space; the system commits a page when it is first written.
"""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np
import numpy.typing as npt

from llmkit.errors import ContextFullError

BLOCK_CELLS = 32
POISON = (
    "LLMKIT_POISON"  # tests set this variable: blocks are full of NaN when they are handed out first, and when freed
)

Blocks = npt.NDArray[np.int64]

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform.startswith("linux") else 0)


class BlockPool:
    """`n_blocks` blocks of `block_bytes` bytes each (a multiple of 64).

    addresses: int64 [n_blocks], what kernels read. Invariant: a block is free exactly when nobody references it.
    """

    def __init__(self, block_bytes: int, n_blocks: int) -> None:
        self.block_bytes, self.n_blocks = block_bytes, n_blocks
        self._arena = self._reserve(block_bytes * n_blocks)
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._arena, np.uint8)
        self.addresses = self.data.ctypes.data + np.arange(n_blocks, dtype=np.int64) * block_bytes
        self._n_refs = np.zeros(n_blocks, np.int32)
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
        """How many sequences reference the block."""
        return int(self._n_refs[block])

    def n_refs_of(self, blocks: Blocks) -> npt.NDArray[np.int32]:
        """The same of each of these blocks."""
        return self._n_refs[blocks]

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
        self._free += reversed(blocks.tolist())
        if self._poison:
            for block in blocks:
                self._fill_with_nan(int(block))

    def set_references(self, n_refs: npt.NDArray[np.int32]) -> None:
        """Sets how many sequences reference each block, and thereby which are free."""
        self._n_refs[:] = n_refs
        self._free = []
        self._free_all(np.flatnonzero(n_refs[: self._n_touched] == 0))

    def copy(self, sources: Blocks, targets: Blocks) -> None:
        """Copies whole blocks."""
        rows = self.data[: self.n_blocks * self.block_bytes].reshape(self.n_blocks, self.block_bytes)
        for source, target in zip(sources, targets, strict=True):
            rows[target] = rows[source]

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
