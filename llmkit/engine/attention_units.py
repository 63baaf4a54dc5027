"""Attention's units of work: which rows meet which tokens of their sequences at a time.

Three ways, which give the same bits: a unit takes some rows of one sequence through all spans; where those are too few
for the threads, a unit takes one span; and where single tokens of several sequences see the same cells, one unit takes
all of them through a span that they share, so that its keys and values are read and decoded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from llmkit.kernels.attention import SPAN, UNIT
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL, POS, Chain
from llmkit.memory.kv_layout import KvLayout
from llmkit.memory.sequence import Sequence
from llmkit.models.inputs import MAX_KINDS, PlanInputs

if TYPE_CHECKING:
    from llmkit.engine.ubatch import Piece

Rows = list[list[int]]


@dataclass(frozen=True)
class UnitSizes:
    """n_rows: rows of a unit at most. may_share: no layer has a window, and no score depends on a row's position."""

    n_rows: int
    n_head: int
    n_threads: int
    may_share: bool


class View:
    """Columns of a sequence as kernels read them. `addresses`: of positions (if any kernel does), and of cells by kind.

    Of what all kinds have dropped nothing is kept but the addresses that it would have.
    """

    def __init__(self, chain: Chain, reads_positions: bool) -> None:
        self._first, self.addresses = 0, [0]
        self.columns, self.cells = list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int64]]()
        if reads_positions:
            self._first = min(chain.gone) // BLOCK_CELLS * BLOCK_CELLS
            self.columns = [chain.tail(POS, self._first)]
            self.addresses = [self.columns[0].ctypes.data - 8 * self._first]
        for k, gone in enumerate(chain.gone):
            first = gone // BLOCK_CELLS * BLOCK_CELLS
            cells = chain.tail(CELL + k, first)
            if gone > first:
                cells = np.array(cells)
                cells[: gone - first] = -1
            self.columns.append(cells)
            self.cells.append(cells)
            self.addresses.append(cells.ctypes.data - 8 * first)
        self.addresses += [0] * (1 + MAX_KINDS - len(self.addresses))

    def first_visible(self, positions: npt.NDArray[np.int64], window: int) -> npt.NDArray[np.int64]:
        """Of tokens at these positions, the first token that each sees through the window."""
        found: npt.NDArray[np.int64] = self._first + np.searchsorted(self.columns[0], positions - window, "right")
        return found


Views = dict[Sequence, View]


def fill_units(inputs: PlanInputs, pieces: list[Piece], views: Views, kv: KvLayout, sizes: UnitSizes) -> None:
    """Chooses the way and writes the units."""
    columns = [column for view in views.values() for column in view.columns]
    groups = _groups(pieces, views, sizes.n_rows) if sizes.may_share else []
    n_shared = sum(group.n_shared for group in groups if len(group.pieces) > 1)
    if n_shared * kv.n_head_kv >= sizes.n_threads:
        n_partials = sum(group.n_partials for group in groups)
        done = inputs.reserve_partials(n_partials * sizes.n_head * (2 + kv.v_dim), len(groups) * kv.n_head_kv)
        units = _group_units(groups, views, sizes.n_rows, done, kv.n_head_kv)
        inputs.set_units(np.array(units, np.int64), columns)
        return
    whole = _whole_units(pieces, views, sizes.n_rows)
    items = len(whole) * kv.n_head_kv
    spans = max((unit[2] + unit[1] - 1) // SPAN + 1 for unit in whole) if whole else 0
    if items >= 4 * sizes.n_threads or spans == 1 or sizes.n_threads == 1:
        inputs.set_units(np.array(whole, np.int64).reshape(-1, UNIT), columns)
        return
    n_partials = sum(unit[1] * ((unit[2] + unit[1] - 1) // SPAN + 1) for unit in whole)
    done = inputs.reserve_partials(n_partials * sizes.n_head * (2 + kv.v_dim), items)
    inputs.set_units(_span_units(whole, done, kv.n_head_kv), columns)


def _whole_units(pieces: list[Piece], views: Views, unit_rows: int, row: int = 0) -> Rows:
    """Units that take all spans of their rows, from this row on."""
    units = Rows()
    for piece in pieces:
        addresses, end = views[piece.seq].addresses, piece.first + piece.n
        for first in range(piece.first, end, unit_rows):
            n = min(unit_rows, end - first)
            units.append([row, n, first, -1, 0, 0, 0, row, n, 1, *addresses])
            row += n
    return units


def _span_units(whole: Rows, done: int, n_head_kv: int) -> npt.NDArray[np.int64]:
    """A unit for each span of each whole unit; partial results are numbered by row and span."""
    units, n_partials = Rows(), 0
    for i, (row, n, index, *_) in enumerate(whole):
        n_spans, addresses = (index + n - 1) // SPAN + 1, whole[i][-1 - MAX_KINDS :]
        group = [n_partials, n_spans, done + 8 * n_head_kv * i, row, n, n_spans]
        units += [[row, n, index, span, *group, *addresses] for span in range(n_spans)]
        n_partials += n * n_spans
    return np.array(units, np.int64)


# -- rows of several sequences ------------------------------------------------------------------------------------


@dataclass
class _Group:
    """Neighbouring single tokens whose sequences have as many spans, of which the first n_shared lie in the same cells;
    or a piece by itself. `row` is the first."""

    row: int
    pieces: list[Piece]
    n_shared: int

    @property
    def n_spans(self) -> int:
        return self.pieces[0].first // SPAN + 1

    @property
    def n_partials(self) -> int:
        return len(self.pieces) * self.n_spans if len(self.pieces) > 1 else 0


def _groups(pieces: list[Piece], views: Views, unit_rows: int) -> list[_Group]:
    """The pieces in order, joined where they share a span."""
    groups, row = list[_Group](), 0
    for piece in pieces:
        n_shared = _n_shared(groups[-1], piece, views) if groups and len(groups[-1].pieces) < unit_rows else 0
        if n_shared:
            groups[-1].pieces.append(piece)
            groups[-1].n_shared = n_shared
        else:
            groups.append(_Group(row, [piece], piece.first // SPAN if piece.n == 1 else 0))
        row += piece.n
    return groups


def _n_shared(group: _Group, piece: Piece, views: Views) -> int:
    """How many spans all would share if the piece joined the group."""
    if piece.n != 1 or piece.first // SPAN + 1 != group.n_spans:
        return 0
    n = group.n_shared * SPAN
    ours, theirs = (views[one.seq].cells[0][:n] for one in (group.pieces[0], piece))
    differ = np.flatnonzero(ours != theirs)
    return int(differ[0]) // SPAN if differ.size else group.n_shared


def _group_units(groups: list[_Group], views: Views, unit_rows: int, done: int, n_head_kv: int) -> Rows:
    """A unit for each span that a group shares, and for each span that a row of it has for itself."""
    units, n_partials = Rows(), 0
    for i, group in enumerate(groups):
        if len(group.pieces) == 1:
            units += _whole_units(group.pieces, views, unit_rows, group.row)
            continue
        n, n_spans, n_shared = len(group.pieces), group.n_spans, group.n_shared
        n_units = n_shared + n * (n_spans - n_shared)
        same = [n_partials, n_spans, done + 8 * n_head_kv * i, group.row, n, n_units]
        shared = views[group.pieces[0].seq].addresses
        # As if all rows came behind the span: each sees all of it.
        units += [[group.row, n, SPAN * (span + 1), span, *same, *shared] for span in range(n_shared)]
        for j, piece in enumerate(group.pieces):
            own = views[piece.seq].addresses
            units += [[group.row + j, 1, piece.first, span, *same, *own] for span in range(n_shared, n_spans)]
        n_partials += group.n_partials
    return units
