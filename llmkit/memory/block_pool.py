"""Blocks of 32 cells in one arena: numbered, addressed by pointer, ref-counted. Knows nothing of what a cell holds.

The arena is reserved address space; the system commits a page when it is first written.
"""

from __future__ import annotations

import mmap
import sys

import numpy as np
import numpy.typing as npt

from llmkit.errors import ContextFullError

BLOCK_CELLS = 32

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
        self._free: list[int] = []  # freed blocks; those from _n_used on were never handed out
        self._n_used = 0
        self._poison = False

    @staticmethod
    def _reserve(n_bytes: int) -> mmap.mmap:
        try:
            return mmap.mmap(-1, max(n_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        except (OSError, ValueError, OverflowError) as error:
            message = f"cannot reserve {n_bytes / 2**30:.1f} GiB of memory for the KV cache"
            raise ContextFullError(message, "choose a smaller context (-c)") from error

    @property
    def n_free(self) -> int:
        return len(self._free) + self.n_blocks - self._n_used

    def n_refs(self, block: int) -> int:
        """How many sequences reference the block."""
        return int(self._n_refs[block])

    def allocate(self, n: int) -> list[int]:
        """Takes `n` free blocks, each with one reference; ContextFullError, and nothing taken, when there are fewer."""
        if n > self.n_free:
            message = (
                f"the KV cache is full: {n} more blocks of {BLOCK_CELLS} tokens are needed, {self.n_free} are free"
            )
            raise ContextFullError(message, "choose a larger context (-c)")
        blocks = [self._take() for _ in range(n)]
        self._n_refs[blocks] = 1
        return blocks

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        self._n_used += 1
        return self._n_used - 1

    def retain(self, block: int) -> None:
        """Adds a reference."""
        assert self._n_refs[block] > 0, "a free block has no owner to share it"
        self._n_refs[block] += 1

    def release(self, block: int) -> None:
        """Drops a reference; the last one frees the block."""
        assert self._n_refs[block] > 0, "released more often than referenced"
        self._n_refs[block] -= 1
        if self._n_refs[block] == 0:
            self._free.append(block)
            if self._poison:
                self._fill_with_nan(block)

    def set_references(self, n_refs: npt.NDArray[np.int32]) -> None:
        """Sets how many sequences reference each block, and thereby which are free."""
        self._n_refs[:] = n_refs
        self._free = [int(block) for block in np.flatnonzero(n_refs[: self._n_used] == 0)[::-1]]

    # -- for tests: whatever a result wrongly takes from elsewhere shows -------------------------------------------

    def shuffle(self, seed: int) -> None:
        """Hands out free blocks in a random order from now on."""
        self._free += range(self._n_used, self.n_blocks)
        self._n_used = self.n_blocks
        np.random.default_rng(seed).shuffle(self._free)

    def poison(self, on: bool) -> None:
        """Fills blocks with NaN (in float16 and float32 alike) when they are freed, and the free ones now."""
        self._poison = on
        if on:
            for block in [*self._free, *range(self._n_used, self.n_blocks)]:
                self._fill_with_nan(block)

    def _fill_with_nan(self, block: int) -> None:
        self.data[block * self.block_bytes : (block + 1) * self.block_bytes] = 0xFF
