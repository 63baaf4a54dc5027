"""References on blocks that are held for later, counted apart from those of sequences. Knows no tree."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from llmkit.memory.chain import Columns
from llmkit.memory.kv_cache import KvCache

Held = tuple[Columns, ...]  # blocks by kind of memory, each once


class HeldBlocks:
    """How often each block of a cache is referenced from here, and how many bytes these blocks have."""

    def __init__(self, kv: KvCache) -> None:
        self._pools = kv.pools
        self._n_refs = [np.zeros(pool.n_blocks, np.int32) for pool in kv.pools]
        self.n_bytes = 0

    def retain(self, held: Held) -> None:
        """Adds a reference to each of these blocks, each of which somebody references."""
        for pool, n_refs, blocks in zip(self._pools, self._n_refs, held, strict=True):
            pool.retain(blocks)
            self.n_bytes += int((n_refs[blocks] == 0).sum()) * pool.block_bytes
            n_refs[blocks] += 1

    def release(self, held: Held) -> None:
        """Drops a reference of each of these blocks."""
        for pool, n_refs, blocks in zip(self._pools, self._n_refs, held, strict=True):
            n_refs[blocks] -= 1
            self.n_bytes -= int((n_refs[blocks] == 0).sum()) * pool.block_bytes
            pool.release(blocks)

    def bytes_of(self, held: Held) -> int:
        """Bytes of these blocks."""
        return sum(blocks.size * pool.block_bytes for pool, blocks in zip(self._pools, held, strict=True))

    def new_bytes(self, held: Held) -> int:
        """Bytes of those of these blocks that are not held yet."""
        new = [blocks[n_refs[blocks] == 0] for n_refs, blocks in zip(self._n_refs, held, strict=True)]
        return self.bytes_of(tuple(new))

    def n_others(self, held: Held) -> int:
        """How many sequences lie in one of these blocks, at most."""
        most = 0
        for pool, n_refs, blocks in zip(self._pools, self._n_refs, held, strict=True):
            if blocks.size:
                most = max(most, int((pool.n_refs_of(blocks) - n_refs[blocks]).max()))
        return most

    def alone(self, kind: int) -> npt.NDArray[np.bool_]:
        """Which blocks nobody else references: dropping all references from here would free them."""
        n_refs = self._n_refs[kind]
        alone: npt.NDArray[np.bool_] = (n_refs > 0) & (self._pools[kind].n_refs_of(np.arange(n_refs.size)) == n_refs)
        return alone

    def recount(self, kind: int, all_held: Iterable[Held]) -> npt.NDArray[np.int32]:
        """Counts the references of one kind anew; int32 [n_blocks]."""
        n_refs = self._n_refs[kind]
        n_refs[:] = 0
        for held in all_held:
            n_refs[held[kind]] += 1
        self.n_bytes = sum(
            int((refs > 0).sum()) * pool.block_bytes for refs, pool in zip(self._n_refs, self._pools, strict=True)
        )
        return n_refs
