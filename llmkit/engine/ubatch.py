"""Splitting a batch into ubatches, and filling a plan's inputs with one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmkit.engine.batch import Segment, Wanted
from llmkit.kernels.attention import SPAN, UNIT
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL, POS, Chain
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.kv_layout import KvLayout
from llmkit.memory.sequence import Sequence
from llmkit.models.inputs import MAX_KINDS, PlanInputs


@dataclass(frozen=True)
class Piece:
    """Tokens of a sequence in one ubatch, int32 [n], the first its `first`-th; logits of all, the last, or none."""

    seq: Sequence
    first: int
    tokens: npt.NDArray[np.int32]
    logits: Wanted

    @property
    def n(self) -> int:
        return self.tokens.size

    @property
    def n_out(self) -> int:
        return {"all": self.n, "last": 1, "none": 0}[self.logits]


def split(segments: list[Segment], tokens: list[npt.NDArray[np.int32]], n_ubatch: int) -> list[list[Piece]]:
    """Runs of at most n_ubatch tokens, in order; a segment's "last" belongs to its last piece."""
    ubatches: list[list[Piece]] = [[]]
    ends: dict[Sequence, int] = {}
    room = n_ubatch
    for segment, ids in zip(segments, tokens, strict=True):
        first, done = ends.get(segment.seq, segment.seq.n_tokens), 0
        ends[segment.seq] = first + ids.size
        while done < ids.size:
            if room == 0:
                ubatches.append([])
                room = n_ubatch
            n = min(ids.size - done, room)
            wanted: Wanted = "none" if segment.logits == "last" and done + n < ids.size else segment.logits
            ubatches[-1].append(Piece(segment.seq, first + done, ids[done : done + n], wanted))
            room -= n
            done += n
    return ubatches


def fill_inputs(
    inputs: PlanInputs, pieces: list[Piece], kv: KvCache, unit_rows: int, n_head: int, n_threads: int
) -> int:
    """Writes tokens, positions, cells, wanted rows and attention's units; the number of rows of logits."""
    row, out_rows = 0, list[int]()
    views = {piece.seq: _View(piece.seq.chain, inputs.reads_positions) for piece in pieces}
    for piece in pieces:
        rows = slice(row, row + piece.n)
        columns = piece.seq.chain.rows(piece.first, piece.first + piece.n)
        inputs.tokens[rows] = piece.tokens
        inputs.positions[rows] = columns[POS]
        for k, pool in enumerate(kv.pools):
            inputs.blocks[k, rows] = pool.addresses[columns[CELL + k] >> 5]
            inputs.cells[k, rows] = columns[CELL + k] & 31
        for window, first_visible in inputs.first_visible.items():
            first_visible[rows] = views[piece.seq].first_visible(columns[POS], window)
        out_rows += range(row + piece.n - piece.n_out, row + piece.n)
        row += piece.n
    inputs.out_rows[: len(out_rows)] = out_rows
    inputs.counts[:2] = row, len(out_rows)
    _fill_units(inputs, pieces, views, kv.layout, unit_rows, n_head, n_threads)
    return len(out_rows)


class _View:
    """Columns of a sequence as kernels read them. `addresses`: of positions (if any kernel does), and of cells by kind.

    Of what all kinds have dropped nothing is kept but the addresses that it would have.
    """

    def __init__(self, chain: Chain, reads_positions: bool) -> None:
        self._first, self.addresses = 0, [0]
        self.columns: list[npt.NDArray[np.int64]] = []
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
            self.addresses.append(cells.ctypes.data - 8 * first)
        self.addresses += [0] * (1 + MAX_KINDS - len(self.addresses))

    def first_visible(self, positions: npt.NDArray[np.int64], window: int) -> npt.NDArray[np.int64]:
        """Of tokens at these positions, the first token that each sees through the window."""
        found: npt.NDArray[np.int64] = self._first + np.searchsorted(self.columns[0], positions - window, "right")
        return found


Views = dict[Sequence, _View]


def _fill_units(
    inputs: PlanInputs, pieces: list[Piece], views: Views, kv: KvLayout, unit_rows: int, n_head: int, n_threads: int
) -> None:
    """Units of up to unit_rows tokens; where those are too few for the threads, one unit a span."""
    columns = [column for view in views.values() for column in view.columns]
    whole = _whole_units(pieces, views, unit_rows)
    items = len(whole) * kv.n_head_kv
    spans = max((unit[2] + unit[1] - 1) // SPAN + 1 for unit in whole) if whole else 0
    if items >= 4 * n_threads or spans == 1 or n_threads == 1:
        inputs.set_units(np.array(whole, np.int64).reshape(-1, UNIT), columns)
        return
    n_partials = sum(unit[1] * ((unit[2] + unit[1] - 1) // SPAN + 1) for unit in whole)
    done = inputs.reserve_partials(n_partials * n_head * (2 + kv.v_dim), items)
    inputs.set_units(_span_units(whole, done, kv.n_head_kv), columns)


def _whole_units(pieces: list[Piece], views: Views, unit_rows: int) -> list[list[int]]:
    """Units that take all spans of their rows."""
    units, row = list[list[int]](), 0
    for piece in pieces:
        addresses, end = views[piece.seq].addresses, piece.first + piece.n
        for first in range(piece.first, end, unit_rows):
            n = min(unit_rows, end - first)
            units.append([row, n, first, -1, 0, 0, 0, *addresses])
            row += n
    return units


def _span_units(whole: list[list[int]], done: int, n_head_kv: int) -> npt.NDArray[np.int64]:
    """A unit for each span of each whole unit; partial results are numbered by row and span."""
    units, n_partials = list[list[int]](), 0
    for i, (row, n, index, _, _, _, _, *addresses) in enumerate(whole):
        n_spans = (index + n - 1) // SPAN + 1
        counters = done + 8 * n_head_kv * i
        units += [[row, n, index, span, n_partials, n_spans, counters, *addresses] for span in range(n_spans)]
        n_partials += n * n_spans
    return np.array(units, np.int64)
