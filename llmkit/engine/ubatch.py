"""Splitting a batch into ubatches, and filling a plan's inputs with one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmkit.engine.batch import Segment, Wanted
from llmkit.kernels.attention import SPAN, UNIT
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.sequence import Sequence
from llmkit.models.inputs import PlanInputs


@dataclass(frozen=True)
class Piece:
    """Tokens first .. last of a sequence, in one ubatch; logits of all, of the last, or of none."""

    seq: Sequence
    first: int
    last: int
    logits: Wanted

    @property
    def n(self) -> int:
        return self.last - self.first

    @property
    def n_out(self) -> int:
        return {"all": self.n, "last": 1, "none": 0}[self.logits]


def split(segments: list[Segment], starts: list[int], n_ubatch: int) -> list[list[Piece]]:
    """Runs of at most n_ubatch tokens, in order; a segment's "last" belongs to its last piece."""
    ubatches: list[list[Piece]] = [[]]
    room = n_ubatch
    for segment, start in zip(segments, starts, strict=True):
        first, end = start, start + len(segment.tokens)
        while first < end:
            if room == 0:
                ubatches.append([])
                room = n_ubatch
            last = min(end, first + room)
            wanted: Wanted = "none" if segment.logits == "last" and last < end else segment.logits
            ubatches[-1].append(Piece(segment.seq, first, last, wanted))
            room -= last - first
            first = last
    return ubatches


def fill_inputs(
    inputs: PlanInputs, pieces: list[Piece], kv: KvCache, unit_rows: int, n_head: int, n_threads: int
) -> int:
    """Writes tokens, positions, cells, wanted rows and attention's units; the number of rows of logits."""
    row, out_rows = 0, list[int]()
    for piece in pieces:
        rows = slice(row, row + piece.n)
        cells = piece.seq.cells[piece.first : piece.last]
        inputs.tokens[rows] = piece.seq.tokens[piece.first : piece.last]
        inputs.positions[rows] = np.arange(piece.first, piece.last)
        inputs.blocks[rows] = kv.pool.addresses[cells >> 5]
        inputs.cells[rows] = cells & 31
        out_rows += range(row + piece.n - piece.n_out, row + piece.n)
        row += piece.n
    inputs.out_rows[: len(out_rows)] = out_rows
    inputs.counts[:2] = row, len(out_rows)
    _fill_units(inputs, pieces, kv, unit_rows, n_head, n_threads)
    return len(out_rows)


def _fill_units(
    inputs: PlanInputs, pieces: list[Piece], kv: KvCache, unit_rows: int, n_head: int, n_threads: int
) -> None:
    """Units of up to unit_rows tokens; where those are too few for the threads, one unit a span."""
    whole = _whole_units(pieces, unit_rows)
    items = len(whole) * kv.layout.n_head_kv
    spans = max((unit[2] + unit[1] - 1) // SPAN + 1 for unit in whole) if whole else 0
    if items >= 4 * n_threads or spans == 1 or n_threads == 1:
        inputs.set_units(np.array(whole, np.int64).reshape(-1, UNIT))
        return
    n_head_kv = kv.layout.n_head_kv
    n_partials = sum(unit[1] * ((unit[2] + unit[1] - 1) // SPAN + 1) for unit in whole)
    done = inputs.reserve_partials(n_partials * n_head * (2 + kv.layout.v_dim), items)
    inputs.set_units(_span_units(whole, done, n_head_kv))


def _whole_units(pieces: list[Piece], unit_rows: int) -> list[list[int]]:
    """Units that take all spans of their rows."""
    units, row = list[list[int]](), 0
    for piece in pieces:
        cells = piece.seq.cells.ctypes.data
        for first in range(piece.first, piece.last, unit_rows):
            n = min(unit_rows, piece.last - first)
            units.append([row, n, first, cells, -1, 0, 0, 0])
            row += n
    return units


def _span_units(whole: list[list[int]], done: int, n_head_kv: int) -> npt.NDArray[np.int64]:
    """A unit for each span of each whole unit; partial results are numbered by row and span."""
    units, n_partials = list[list[int]](), 0
    for i, (row, n, pos, cells, *_) in enumerate(whole):
        n_spans = (pos + n - 1) // SPAN + 1
        counters = done + 8 * n_head_kv * i
        units += [[row, n, pos, cells, span, n_partials, n_spans, counters] for span in range(n_spans)]
        n_partials += n * n_spans
    return np.array(units, np.int64)
