"""The KV cache: sequences over pools of blocks, one pool a kind of memory. Gives tokens cells, puts chains in place.

Invariants: a block has one reference for each sequence whose chain lies in it, and those of the holders; a block with
several references is never written; a sequence's chain is put in place by one assignment, and what comes before it
changes nothing that any chain shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from llmkit.errors import ContextFullError, LlmkitError, UsageError
from llmkit.memory.block_pool import BLOCK_CELLS, BlockPool
from llmkit.memory.chain import CELL, POS, ROTATED, TOKEN, Chain, Columns, Part, Run
from llmkit.memory.kinds import MemoryLayout
from llmkit.memory.kv_layout import KvLayout
from llmkit.memory.operations import MAX_POS, without
from llmkit.memory.sequence import Sequence

_SHORT = 64  # tokens: a part that cannot grow and is shorter is copied into its successor, so that parts stay few


class _Tail(NamedTuple):
    """Where new tokens of a chain go in one kind: into `block` (-1: none goes on), or a copy of `copied` (-1: none)."""

    block: int
    copied: int


_NO_TAIL = _Tail(-1, -1)


class Holder(Protocol):
    """Who references blocks without being a sequence, as what is kept for later does."""

    def count(self, kind: int) -> npt.NDArray[np.int32]:
        """How often it references each block of this kind, counted anew, int32 [n_blocks]."""


class KvCache:
    """At least `n_cells` cells of each kind, shared by any number of sequences of up to `n_ctx` tokens.

    n_positions: how many there are, 0 for any number. n_cells: 0 for as many as n_ctx.
    """

    def __init__(self, layout: MemoryLayout, n_ctx: int, n_positions: int = 0, n_cells: int = 0) -> None:
        self.kinds, self.n_ctx, self.n_positions = layout.kinds, n_ctx, n_positions
        n_blocks = -(-(n_cells or n_ctx) // BLOCK_CELLS)
        self.pools = [BlockPool(kind.layout.block_bytes, n_blocks) for kind in layout.kinds]
        self.has_window = any(kind.window for kind in layout.kinds)
        self.sequences: set[Sequence] = set()
        self.holders: list[Holder] = []
        self.kept: list[list[Columns]] = []  # see sliding_window

    @property
    def pool(self) -> BlockPool:
        """The pool of the first kind."""
        return self.pools[0]

    @property
    def layout(self) -> KvLayout:
        """The layout of the first kind; types and sizes of a head are the same in all."""
        return self.kinds[0].layout

    @property
    def windows(self) -> tuple[int, ...]:
        """Each kind's window, 0 for one that keeps all tokens."""
        return tuple(kind.window for kind in self.kinds)

    def new_sequence(self) -> Sequence:
        """An empty sequence."""
        seq = Sequence(len(self.kinds))
        self.sequences.add(seq)
        return seq

    # -- new tokens -----------------------------------------------------------------------------------------------

    def check_room(self, n_new: dict[Sequence, int]) -> None:
        """ContextFullError unless so many new tokens fit into each sequence, all of them together."""
        for seq, n in n_new.items():
            total, last = seq.chain.n + n, seq.chain.pos_max + n
            if last >= MAX_POS:
                raise ContextFullError(
                    f"position {last} does not exist; they end before {MAX_POS}", "begin a new sequence"
                )
            if total > self.n_ctx:
                message = f"{total} tokens do not fit into a context of {self.n_ctx}"
                raise ContextFullError(message, "choose a larger context (-c) or a shorter prompt")
            if 0 < self.n_positions <= last:
                message = f"position {last} does not exist: the model knows {self.n_positions}"
                raise ContextFullError(message, "begin a new sequence")
        most = sum([n // BLOCK_CELLS + 2 for n in n_new.values()])
        for k, kind in enumerate(self.kinds):
            if not kind.window and most > self.pools[k].n_free:
                self.pools[k].check_room(sum(self._n_blocks(seq.chain, k, n) for seq, n in n_new.items()))

    def blocks_needed(self, n_new: dict[Sequence, int]) -> list[int]:
        """How many free blocks of each kind so many new tokens take, before a window lets go of any."""
        return [sum(self._n_blocks(seq.chain, k, n) for seq, n in n_new.items()) for k in range(len(self.kinds))]

    def _n_blocks(self, chain: Chain, k: int, n: int) -> int:
        """How many blocks of kind k n new tokens take."""
        return _n_blocks(chain.n, n, self._tail(chain, k)) if n else 0

    def _tail(self, chain: Chain, k: int) -> _Tail:
        """The block that the next cell continues, if that is nobody else's; else the one to begin with a copy of."""
        n = chain.n % BLOCK_CELLS
        if n == 0 or chain.gone[k] >= chain.n:
            return _NO_TAIL
        run, _, stop = chain.parts[-1]
        block, place = divmod(int(run.data[CELL + k, stop - 1]), BLOCK_CELLS)
        shared = self.pools[k].n_refs(block) > 1
        if place < n and not shared and (chain.sorted or self._is_highest(chain, k, block, place)):
            return _Tail(block, -1)
        if not shared or place != n - 1 or chain.gone[k] > chain.n - n:
            return _NO_TAIL
        cells = chain.rows(chain.n - n, chain.n)[CELL + k]
        return _Tail(-1, block if (cells == block * BLOCK_CELLS + np.arange(n)).all() else -1)

    def _is_highest(self, chain: Chain, k: int, block: int, place: int) -> bool:
        """Whether no token of the chain lies in the block behind this place."""
        cells = chain.column(CELL + k)[chain.gone[k] :]
        return not ((cells // BLOCK_CELLS == block) & (cells % BLOCK_CELLS > place)).any()

    def append(self, seq: Sequence, tokens: npt.NDArray[np.int32]) -> None:
        """Gives `tokens` (int32 [n]) the positions after the last, and cells; `check_room` has been asked.

        A token that is the i-th of its sequence goes to place i mod 32 of a block: of the last one where nobody else
        lies in it, else of a new one, which begins with a copy of the cells of the last that it continues.
        ContextFullError, and nothing changed, when a pool has no room.
        """
        chain, n = seq.chain, tokens.size
        if n == 0:
            return
        tails = [self._tail(chain, k) for k in range(len(self.pools))]
        n_new = [_n_blocks(chain.n, n, tail) for tail in tails]
        for pool, n_blocks in zip(self.pools, n_new, strict=True):
            pool.check_room(n_blocks)
        n_copied = chain.n % BLOCK_CELLS if any(tail.copied >= 0 for tail in tails) else 0
        rows = np.empty((CELL + len(tails), n_copied + n), np.int64)
        if n_copied:
            rows[:, :n_copied] = chain.rows(chain.n - n_copied, chain.n)
        new, pos = rows[:, n_copied:], chain.pos_max + 1
        new[TOKEN] = tokens
        new[POS : ROTATED + 1] = np.arange(pos, pos + n)
        taken = [pool.allocate(n_blocks) for pool, n_blocks in zip(self.pools, n_new, strict=True)]
        for k, tail in enumerate(tails):
            new[CELL + k] = _cells(chain.n, n, [tail.block, *taken[k]] if tail.block >= 0 else taken[k])
            if tail.block >= 0:
                self.pools[k].make_writable(np.array([tail.block]))
            if tail.copied >= 0:
                self.pools[k].copy(np.array([tail.copied]), np.array(taken[k][:1]))
                rows[CELL + k, :n_copied] += (taken[k][0] - tail.copied) * BLOCK_CELLS
        if not n_copied:
            seq.chain = _joined(chain, 0, rows)
            return
        self._keep([tail.copied for tail in tails])
        self.replace(seq, _joined(chain, n_copied, rows))
        for pool, blocks in zip(self.pools, taken, strict=True):
            pool.release(np.array(blocks, np.int64))

    def _keep(self, blocks: list[int]) -> None:
        """References one block of each kind (-1: none) to the end of the batch.

        A sequence that leaves a block may be put back into it. Until then nobody goes on in the block as if alone.
        """
        kept = [np.array([block] if block >= 0 else [], np.int64) for block in blocks]
        for pool, numbers in zip(self.pools, kept, strict=True):
            pool.retain(numbers)
        self.kept.append(kept)

    # -- putting chains in place ----------------------------------------------------------------------------------

    def replace(self, seq: Sequence, chain: Chain) -> None:
        """Puts another chain in place, and moves the references to its blocks."""
        old = seq.chain
        for k, pool in enumerate(self.pools):
            pool.retain(chain.blocks(k))
        seq.chain = chain
        for k, pool in enumerate(self.pools):
            pool.release(old.blocks(k))

    def truncate(self, seq: Sequence, n_tokens: int) -> None:
        """Forgets the tokens of `seq` from `n_tokens` on; RewindError where a window lacks what would be seen then."""
        assert 0 <= n_tokens <= seq.n_tokens
        self.replace(seq, without(seq.chain, n_tokens, seq.n_tokens, self.windows))

    def free(self, seq: Sequence) -> None:
        """Ends a sequence: all its references are dropped. One that was freed before is left alone."""
        if seq not in self.sequences:
            if seq.n_tokens:
                raise UsageError("the sequence belongs to another context", "free it there")
            return
        with self.counted():
            self.truncate(seq, 0)
        self.sequences.discard(seq)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Around a change: should it be interrupted (Ctrl-C), the references are counted anew."""
        try:
            yield
        except LlmkitError:
            raise
        except BaseException:
            self.recount()
            raise

    def recount(self) -> None:
        """Counts the references anew, of sequences and holders: an interruption may have left a change half done."""
        self.kept = []
        for k, pool in enumerate(self.pools):
            n_refs = np.zeros(pool.n_blocks, np.int32)
            for seq in self.sequences:
                n_refs[seq.chain.blocks(k)] += 1
            for holder in self.holders:
                n_refs += holder.count(k)
            pool.set_references(n_refs)


def _n_blocks(n_before: int, n: int, tail: _Tail) -> int:
    """How many new blocks n tokens take behind n_before others."""
    return (n_before + n - 1) // BLOCK_CELLS - n_before // BLOCK_CELLS + (tail.block < 0)


def _cells(n_before: int, n: int, blocks: list[int]) -> int | Columns:
    """Where n tokens behind n_before others go, in these blocks."""
    if n == 1:
        return blocks[0] * BLOCK_CELLS + n_before % BLOCK_CELLS
    index = np.arange(n_before % BLOCK_CELLS, n_before % BLOCK_CELLS + n)
    cells: Columns = np.array(blocks, np.int64)[index // BLOCK_CELLS] * BLOCK_CELLS + index % BLOCK_CELLS
    return cells


def _joined(chain: Chain, n_replaced: int, rows: Columns) -> Chain:
    """The chain with `rows` in the place of its last n_replaced tokens and behind them."""
    parts = chain.cut(0, chain.n - n_replaced) if n_replaced else chain.parts
    if parts and not n_replaced:
        run, start, stop = parts[-1]
        if run.n == stop:
            run.extend(rows)
            joined = (*parts[:-1], Part(run, start, run.n))
            return Chain(joined, chain.gone, chain.sorted, chain.turned, chain.changed_from)
    if parts and parts[-1].stop - parts[-1].start < _SHORT:
        run, start, stop = parts[-1]
        rows, parts = np.concatenate([run.data[:, start:stop], rows], axis=1), parts[:-1]
    joined = (*parts, Part(Run(rows), 0, rows.shape[1]))
    return Chain(joined, chain.gone, chain.sorted, chain.turned, chain.changed_from)
