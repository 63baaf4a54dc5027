"""Attention's units of work: which rows meet which tokens of their sequences together.

Sequences that lie in the same cells from their first tokens on form a tree: what all share, then what some of them
share, then what each has for itself. A unit takes rows of such sequences along the tree, so that keys and values which
they share are read and decoded once for all of them. Rows are alone in a unit where their sequences share little, and
a unit is split into one a span where there would be too few for the threads. All ways give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from llmkit.engine.sequence_view import View
from llmkit.kernels.attention import SPAN, STEP, TILE, UNIT
from llmkit.memory.chain import Chain
from llmkit.memory.kv_layout import KvLayout
from llmkit.memory.sequence import Sequence
from llmkit.models.inputs import PlanInputs

if TYPE_CHECKING:
    from llmkit.engine.ubatch import Piece

_SPAN_TILES = SPAN // TILE
_WORTH = 8  # sequences are met together if they share this part of the shorter one: what it costs is about 5%


@dataclass(frozen=True)
class UnitSizes:
    """n_rows: rows of a unit at most."""

    n_rows: int
    n_head: int
    n_threads: int


class _Step(NamedTuple):
    """Rows at places first .. first + n of the list meet these tiles, which lie in the view's cells for all of them."""

    first: int
    n: int
    first_tile: int
    last_tile: int
    closes: bool
    view: View


class _Unit(NamedTuple):
    """Rows at places first .. first + n of the list. span: the only one, or -1 for all. work: rows times tiles."""

    first: int
    n: int
    span: int
    steps: list[_Step]
    work: int


class AttentionUnits:
    """Makes the units of batch after batch, and remembers of the last one what may serve the next."""

    def __init__(self, sizes: UnitSizes) -> None:
        self.sizes = sizes
        self.views: dict[Sequence, View] = {}
        self._common: dict[tuple[View, View], int] = {}

    def look(self, chains: dict[Sequence, Chain]) -> None:
        """Brings `views` up to date: those of these sequences, and no others."""
        old, self.views = self.views, {}
        for seq, chain in chains.items():
            view = old.get(seq)
            self.views[seq] = view if view is not None and view.follow(chain) else View(chain)

    def fill(self, inputs: PlanInputs, pieces: list[Piece], kv: KvLayout) -> None:
        """Writes the units of a batch whose sequences `look` has seen, and what each row sees."""
        order = sorted(self.views, key=lambda seq: self.views[seq].key)
        tree = _Tree(order, pieces, self.views, inputs)
        tree.common = self._find_common(tree.views)
        units = tree.units(self.sizes.n_rows)
        if self.sizes.n_threads > 1:
            units = self._split(units, tree, inputs, kv)
            units.sort(key=lambda unit: -unit.work)  # the largest first, so that threads end together
        _write(units, tree.rows, inputs)

    def _find_common(self, views: list[View]) -> list[int]:
        """How many tiles neighbours share. Sequences that only grow go on to share as many."""
        known, self._common = self._common, {}
        for pair in pairwise(views):
            n = known.get(pair)
            self._common[pair] = pair[0].n_common(pair[1]) if n is None else n
        return list(self._common.values())

    def _split(self, units: list[_Unit], tree: _Tree, inputs: PlanInputs, kv: KvLayout) -> list[_Unit]:
        """Those that are too much for one thread become one a span, with partial results numbered by row and span."""
        most = sum([unit.work for unit in units]) * kv.n_head_kv // (4 * self.sizes.n_threads)
        out, n_partials = list[_Unit](), 0
        for unit in units:
            parts = _by_span(unit) if unit.work > most else [unit]
            if len(parts) == 1:
                out.append(unit)
                continue
            out += parts
            rows = tree.rows[unit.first : unit.first + unit.n]
            n_spans = (inputs.row_ends[rows] + SPAN - 1) // SPAN
            inputs.row_partials[rows] = n_partials + np.cumsum(n_spans) - n_spans
            n_partials += int(n_spans.sum())
        inputs.reserve_partials(n_partials * self.sizes.n_head * (2 + kv.v_dim), inputs.n_rows_max * kv.n_head_kv)
        return out


class _Tree:
    """The sequences of a batch in an order in which those that share most are neighbours.

    rows: int64, the batch's rows in this order; those of views[i] are starts[i] .. starts[i + 1] of them. ends: how
    many tokens each sees. common[i]: how many tiles views[i] and views[i + 1] share, from the first on. So views
    i .. j share as many as the smallest number between them says.
    """

    def __init__(
        self, order: list[Sequence], pieces: list[Piece], views: dict[Sequence, View], inputs: PlanInputs
    ) -> None:
        found: dict[Sequence, list[int]] = {seq: [] for seq in order}
        ends = list[int]()
        for piece in pieces:
            found[piece.seq] += range(len(ends), len(ends) + piece.n)
            ends += range(piece.first + 1, piece.first + piece.n + 1)
        inputs.row_ends[: len(ends)] = ends
        rows = [row for some in found.values() for row in some]
        self.rows = np.array(rows, np.int64)
        self.ends = [ends[row] for row in rows]
        self.views = [views[seq] for seq in order]
        self.starts = [0, *accumulate([len(some) for some in found.values()])]
        self.common: list[int] = []

    def units(self, n_rows: int) -> list[_Unit]:
        """Units of at most n_rows rows each, for all spans: runs of neighbours that share enough, cut evenly."""
        units, begin = list[_Unit](), 0
        for i in range(len(self.views)):
            if i + 1 < len(self.views) and self._worth(i):
                continue
            first, last = self.starts[begin], self.starts[i + 1]
            n_units = -(-(last - first) // n_rows)
            size, inside = -(-(last - first) // n_units), begin
            for place in range(first, last, size):
                end = min(place + size, last)
                while self.starts[inside + 1] <= place:
                    inside += 1
                units.append(self._unit(inside, place, end))
            begin = i + 1
        return units

    def _worth(self, i: int) -> bool:
        """Whether views i and i + 1 share enough to be met together."""
        n = min(self.views[i].n, self.views[i + 1].n)
        return self.common[i] * TILE * _WORTH >= n and self.common[i] > 0

    def _unit(self, i: int, first: int, last: int) -> _Unit:
        """Rows at places first .. last, the first of view i."""
        j = i + 1
        while self.starts[j] < last:
            j += 1
        steps = list[_Step]()
        self._walk(i, j, first, last, 0, steps)
        return _Unit(first, last - first, -1, steps, sum([s.n * (s.last_tile - s.first_tile) for s in steps]))

    def _walk(self, i: int, j: int, first: int, last: int, tile: int, steps: list[_Step]) -> None:
        """Adds the steps of views i .. j, as far as their rows are among places first .. last, from this tile on."""
        first, last = max(first, self.starts[i]), min(last, self.starts[j])
        if j == i + 1:
            # Of a sequence's rows the last sees most.
            steps.append(_Step(first, last - first, tile, -(-self.ends[last - 1] // TILE), True, self.views[i]))
            return
        shared = min(self.common[i : j - 1])
        if shared > tile:
            steps.append(_Step(first, last - first, tile, shared, shared % _SPAN_TILES == 0, self.views[i]))
        begin = i
        for k in range(i, j):
            if k == j - 1 or self.common[k] == shared:
                self._walk(begin, k + 1, first, last, shared, steps)
                begin = k + 1


def _by_span(unit: _Unit) -> list[_Unit]:
    """The unit as units of single spans."""
    units, latest = list[_Unit](), dict[int, list[_Step]]()
    for first, n, first_tile, last_tile, closes, view in unit.steps:
        for span in range(first_tile // _SPAN_TILES, -(-last_tile // _SPAN_TILES)):
            start, end = max(first_tile, span * _SPAN_TILES), min(last_tile, (span + 1) * _SPAN_TILES)
            step = _Step(first, n, start, end, closes if end == last_tile else True, view)
            if start % _SPAN_TILES:
                latest[span].append(step)  # steps that go on in a span follow the one that began it
            else:
                latest[span] = [step]
                units.append(_Unit(first, n, span, latest[span], n * (end - start)))
    return units


def _write(units: list[_Unit], rows: npt.NDArray[np.int64], inputs: PlanInputs) -> None:
    """Writes units and steps as kernels.attention_memory has them."""
    more = [0] * (STEP - 6 - len(units[0].steps[0].view.addresses)) if units else []
    steps = [[s[0], s[1], s[0] - u[0], *s[2:5], *s[5].addresses, *more] for u in units for s in u.steps]
    step_table = np.array(steps, np.int64).reshape(-1, STEP)
    step_table[:, 0] = rows.ctypes.data + 8 * step_table[:, 0]
    ends = accumulate([len(unit.steps) for unit in units], initial=0)
    table = np.array([[end, len(u.steps), u.first, u.n, u.span] for end, u in zip(ends, units, strict=False)], np.int64)
    table = table.reshape(-1, UNIT)
    table[:, 0] = step_table.ctypes.data + 8 * STEP * table[:, 0]
    table[:, 2] = rows.ctypes.data + 8 * table[:, 2]
    inputs.set_units(table, step_table, rows)
