"""The KV cache: sequences over a pool of blocks. Where K and V lie in a block is `kv_layout`'s."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmkit.errors import ContextFullError, UsageError
from llmkit.memory.block_pool import BLOCK_CELLS, BlockPool
from llmkit.memory.kv_layout import KvLayout
from llmkit.memory.sequence import Sequence


class KvCache:
    """At least `n_ctx` cells in blocks, shared by any number of sequences."""

    def __init__(self, layout: KvLayout, n_ctx: int) -> None:
        self.layout, self.n_ctx = layout, n_ctx
        self.pool = BlockPool(layout.block_bytes, -(-n_ctx // BLOCK_CELLS))
        self.sequences: set[Sequence] = set()

    def new_sequence(self) -> Sequence:
        """An empty sequence."""
        seq = Sequence()
        self.sequences.add(seq)
        return seq

    def append(self, seq: Sequence, tokens: npt.NDArray[np.int32]) -> None:
        """Gives `tokens` (int32 [n]) cells at the end of `seq`.

        They go to the sequence's last block where nobody else references it, else to new blocks, always to the cell
        pos mod 32. ContextFullError, and nothing changed, when the context or the pool has no room.
        """
        n = seq.n_tokens + tokens.size
        if n > self.n_ctx:
            message = f"{n} tokens do not fit into a context of {self.n_ctx}"
            raise ContextFullError(message, "choose a larger context (-c) or a shorter prompt")
        pos = np.arange(seq.n_tokens, n, dtype=np.int64)
        first = seq.n_tokens // BLOCK_CELLS
        blocks = self._own_tail(seq)
        blocks += self.pool.allocate(-(-n // BLOCK_CELLS) - first - len(blocks))
        cells = np.array(blocks, np.int64)[pos // BLOCK_CELLS - first] * BLOCK_CELLS + pos % BLOCK_CELLS
        seq.append(tokens, cells)

    def _own_tail(self, seq: Sequence) -> list[int]:
        """The block that the next cell continues, where there is one and it is nobody else's."""
        if seq.n_tokens % BLOCK_CELLS == 0:
            return []
        block = int(seq.cells[-1]) // BLOCK_CELLS
        return [block] if self.pool.n_refs(block) == 1 else []

    def truncate(self, seq: Sequence, n_tokens: int) -> None:
        """Forgets the tokens of `seq` from `n_tokens` on and drops references to blocks that it no longer needs."""
        before = seq.blocks
        seq.truncate(n_tokens)
        kept = set(seq.blocks)
        for block in reversed(before):
            if block not in kept:
                self.pool.release(block)

    def free(self, seq: Sequence) -> None:
        """Ends a sequence: all its references are dropped. One that was freed before is left alone."""
        if seq not in self.sequences:
            if seq.n_tokens:
                raise UsageError("the sequence belongs to another context", "free it there")
            return
        self.truncate(seq, 0)
        self.sequences.discard(seq)

    def recount(self) -> None:
        """Counts the references anew from the sequences: an interruption may have left a change half done."""
        n_refs = np.zeros(self.pool.n_blocks, np.int32)
        for seq in self.sequences:
            n_refs[seq.blocks] += 1
        self.pool.set_references(n_refs)
