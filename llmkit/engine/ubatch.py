"""Splitting a batch into ubatches, and filling a plan's inputs with one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmkit.engine.attention_units import AttentionUnits
from llmkit.engine.batch import Segment, Wanted
from llmkit.memory.chain import CELL, POS, TOKEN
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.sequence import Sequence
from llmkit.models.inputs import PlanInputs


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


def fill_inputs(inputs: PlanInputs, pieces: list[Piece], kv: KvCache, attention: AttentionUnits) -> int:
    """Writes tokens, positions, cells, wanted rows and attention's units; the number of rows of logits."""
    attention.look({piece.seq: piece.seq.chain for piece in pieces})
    row, out_rows = 0, list[int]()
    rows = [piece.seq.chain.rows(piece.first, piece.first + piece.n) for piece in pieces]
    columns = np.concatenate(rows, axis=1) if rows else np.empty((CELL + len(kv.pools), 0), np.int64)
    n = columns.shape[1]
    inputs.tokens[:n] = columns[TOKEN]
    inputs.positions[:n] = columns[POS]
    for k, pool in enumerate(kv.pools):
        inputs.blocks[k, :n] = pool.addresses[columns[CELL + k] >> 5]
        inputs.cells[k, :n] = columns[CELL + k] & 31
    for piece in pieces:
        end = row + piece.n
        for window, first_visible in inputs.first_visible.items():
            first_visible[row:end] = attention.views[piece.seq].first_visible(inputs.positions[row:end], window)
        out_rows += range(end - piece.n_out, end)
        row = end
    inputs.out_rows[: len(out_rows)] = out_rows
    inputs.counts[:2] = n, len(out_rows)
    attention.fill(inputs, pieces, kv.layout)
    return len(out_rows)
