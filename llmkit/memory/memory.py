"""The sequence operations, by sequence id, with llama.cpp's names and edge cases. Decides nothing about blocks.

Ranges of positions are half-open [p0, p1); p0 < 0 is the beginning, p1 < 0 the end. A sequence id is any whole number
from 0 on; a sequence exists from its first use. On purpose unlike llama.cpp: copying replaces the range in the target;
a shift never shows in another sequence that shares the cells; any range can be copied between any two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from llmkit.errors import RewindError, UnsupportedError, UsageError
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import POS, Chain, Columns
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.operations import MAX_POS, find_range, with_copy, with_positions, without
from llmkit.memory.sequence import Sequence
from llmkit.memory.shifts import Turn, settle
from llmkit.memory.usage import KindUsage, Usage

ALL = -1


class Memory:
    """A cache's sequences by their ids. can_shift: whether positions may change; turn: what turns keys then, if any."""

    def __init__(self, kv: KvCache, turn: Turn | None, *, can_shift: bool) -> None:
        self._kv, self._turn, self._ids = kv, turn, dict[int, Sequence]()
        self.can_shift = can_shift
        self._windows = tuple(kind.window for kind in kv.kinds)

    @property
    def rewind(self) -> Literal["any", "points", "none"]:
        """Where a sequence can be cut back to: anywhere, or (with windows) where all that is seen is still held."""
        return "points" if any(self._windows) else "any"

    def sequence(self, seq_id: int) -> Sequence:
        """The sequence with this id, made on first use; UsageError for a negative one."""
        if seq_id < 0:
            raise UsageError(f"sequence id {seq_id} is negative", "give 0 or more")
        if self._ids.get(seq_id) not in self._kv.sequences:  # never used, or freed by its handle
            self._ids[seq_id] = self._kv.new_sequence()
        return self._ids[seq_id]

    def _chain(self, seq_id: int) -> Chain:
        """What a sequence holds; it is not made by asking."""
        if seq_id < 0:
            raise UsageError(f"sequence id {seq_id} is negative", "give 0 or more")
        return self._ids[seq_id].chain if seq_id in self._ids else Chain((), (0,) * len(self._windows))

    def settle(self, seq: Sequence) -> None:
        """Turns keys whose positions have changed; ContextFullError, and nothing changed, without room for copies."""
        if not seq.chain.turned:
            with self._kv.counted():
                settle(self._kv, seq, self._turn)

    def _replace(self, seq: Sequence, chain: Chain) -> None:
        with self._kv.counted():
            self._kv.replace(seq, chain)

    # -- operations -----------------------------------------------------------------------------------------------

    def seq_rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        """Removes the tokens in [p0, p1), of all sequences for id -1.

        False, and nothing changed, when the rest would have to see tokens that have left the window's memory.
        """
        if seq_id != ALL:
            self._chain(seq_id)
        found = list(self._kv.sequences) if seq_id == ALL else [s for s in [self._ids.get(seq_id)] if s]
        try:
            chains = [without(seq.chain, *find_range(seq.chain, p0, p1), self._windows) for seq in found]
        except RewindError:
            return False
        for seq, chain in zip(found, chains, strict=True):
            if chain.n != seq.chain.n:
                self._replace(seq, chain)
        return True

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Replaces the tokens of `dst` in [p0, p1) by those of `src`, whose cells both then share.

        RewindError, and nothing changed, when `dst` could not go on from there.
        """
        source, target = self._chain(src), self._chain(dst)
        if src == dst or (not source.n and not target.n):
            return
        if source.n and not source.turned:  # so that both share what is turned
            self.settle(self._ids[src])
        if not target.turned and find_range(target, p0, p1) != (0, target.n):
            self.settle(self._ids[dst])  # else a cell could be in it twice, to be turned for two positions
        chain = with_copy(self._chain(dst), self._chain(src), p0, p1, self._windows)
        self._replace(self.sequence(dst), chain)

    def seq_keep(self, seq_id: int) -> None:
        """Removes all other sequences."""
        self._chain(seq_id)
        for seq in list(self._kv.sequences):
            if seq is not self._ids.get(seq_id):
                self._replace(seq, without(seq.chain, 0, seq.chain.n, self._windows))

    def seq_add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        """Adds delta to the positions in [p0, p1); tokens whose position falls below 0 are removed.

        UnsupportedError where the model's keys cannot be turned to other positions.
        """
        if abs(delta) > MAX_POS:
            raise UsageError(f"positions cannot change by {delta}; they end before {MAX_POS}")
        if delta:
            self._change(seq_id, p0, p1, lambda positions: positions + delta)

    def seq_div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        """Divides the positions in [p0, p1) by d, rounding down."""
        if d < 1:
            raise UsageError(f"positions cannot be divided by {d}", "give 1 or more")
        if d > 1:
            self._change(seq_id, p0, p1, lambda positions: positions // min(d, MAX_POS))

    def _change(self, seq_id: int, p0: int, p1: int, change: Callable[[Columns], Columns]) -> None:
        chain = self._chain(seq_id)
        if not self.can_shift:
            raise UnsupportedError("this model's keys cannot be turned to other positions", "remove tokens instead")
        if chain.n:
            self._replace(self._ids[seq_id], with_positions(chain, p0, p1, change, self._windows))

    def clear(self) -> None:
        """Removes all tokens of all sequences; the peak of what was used is counted anew."""
        for seq in self._kv.sequences:
            self._replace(seq, without(seq.chain, 0, seq.chain.n, self._windows))
        for pool in self._kv.pools:
            pool.n_peak = pool.n_used

    # -- questions ------------------------------------------------------------------------------------------------

    def seq_pos_min(self, seq_id: int) -> int:
        """The first position that all layers still hold, -1 without tokens."""
        chain = self._chain(seq_id)
        first = max(chain.gone)
        return int(chain.rows(first, first + 1)[POS, 0]) if first < chain.n else -1

    def seq_pos_max(self, seq_id: int) -> int:
        """The last position, -1 without tokens."""
        return self._chain(seq_id).pos_max

    def usage(self) -> Usage:
        """Cells and bytes by kind of memory."""
        kinds = []
        for kind, pool in zip(self._kv.kinds, self._kv.pools, strict=True):
            blocks = pool.n_used, pool.n_peak, pool.n_blocks
            cells, n_bytes = (n * BLOCK_CELLS for n in blocks), (n * pool.block_bytes for n in blocks)
            kinds.append(KindUsage(kind.name, kind.window, kind.layout.n_layer, *cells, *n_bytes))
        return Usage(tuple(kinds))
