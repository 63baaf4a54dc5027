"""The blocks of a state file as a context wants them: views of the map where that can be, else put together anew.

A context smaller than a model's window keeps all layers in blocks of one kind, a larger one has a kind for the layers
with a window. So a state may come from a context that divided its memory otherwise; as long as nothing is missing, its
blocks hold the same bytes, layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmkit.files.state_errors import StateWindowError
from llmkit.files.state_file import StateFile
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL, Columns
from llmkit.memory.snapshot import ChainRecord, Snapshot

Bytes = npt.NDArray[np.uint8]
Layers = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Source:
    """Of our kind's blocks, what comes from one of the file's kinds: pairs of places of a layer, there and here.

    numbers: the file's block for each number that our blocks have, -1 for none.
    """

    kind: int
    numbers: Columns
    places: list[tuple[int, int]]


class StateBlocks:
    """Gives a file's blocks by our kinds. copies: whether they are made, and not views of the map."""

    def __init__(self, file: StateFile, sources: list[list[Source]] | None = None) -> None:
        self._file, self._sources = file, sources
        self.copies = file.header.compressed or sources is not None

    def n_blocks(self, k: int) -> int:
        """How many numbers blocks of our kind k have."""
        return self._file.header.kinds[k].blocks.size if self._sources is None else self._sources[k][0].numbers.size

    def views(self, k: int, blocks: Columns) -> list[Bytes]:
        """The bytes of blocks of our kind k, by their numbers."""
        if self._sources is None:
            return self._of_file(k, blocks)
        parts = [(source, self._of_file(source.kind, source.numbers[blocks])) for source in self._sources[k]]
        n_layers = sum(len(source.places) for source, _ in parts)
        return [self._joined([(source, views[i]) for source, views in parts], n_layers) for i in range(blocks.size)]

    def _of_file(self, k: int, blocks: Columns) -> list[Bytes]:
        stored = list(self._file.stored(k))
        views = [stored[i] for i in blocks.tolist()]
        return [self._file.decompress(k, view) for view in views] if self._file.header.compressed else views

    def _joined(self, parts: list[tuple[Source, Bytes]], n_layers: int) -> Bytes:
        """One block of ours from those of the file that have its layers."""
        source, data = parts[0]
        size = self._file.header.kinds[source.kind].block_bytes // self._file.header.kinds[source.kind].n_layer
        out = np.empty(n_layers * size, np.uint8)
        for source, data in parts:
            for there, here in source.places:
                out[here * size : (here + 1) * size] = data[there * size : (there + 1) * size]
        return out


def regrouped(
    snapshot: Snapshot, sizes: Sequence[int], theirs: Layers, ours: Layers, path: str
) -> tuple[Snapshot, list[list[Source]]]:
    """A snapshot of a file's kinds as one of ours, and where each of our kinds' blocks come from.

    sizes: how many blocks the file has of each of its kinds. StateWindowError where tokens are missing that we keep.
    """
    runs = [np.full((CELL + len(ours), run.shape[1]), -1, np.int64) for run in snapshot.runs]
    for run, old in zip(runs, snapshot.runs, strict=True):
        run[:CELL] = old[:CELL]
    sources, blocks = list[list[Source]](), list[Columns]()
    for t, layers in enumerate(ours):
        kinds = sorted({next(k for k, has in enumerate(theirs) if layer in has) for layer in layers})
        numbers = [np.full(sizes[kinds[0]], -1, np.int64) for _ in kinds]
        for chain in snapshot.chains:
            if any(chain.gone[k] for k in kinds):
                message = f"{path}: the window has dropped tokens that this context would keep for all layers"
                raise StateWindowError(message, "give a context larger than the window")
            for run_number, start, stop in chain.parts:
                cells = snapshot.runs[run_number][CELL:, start:stop]
                runs[run_number][CELL + t, start:stop] = cells[kinds[0]]
                _note_blocks(cells, kinds, numbers, path)
        places = [
            [(theirs[k].index(layer), here) for here, layer in enumerate(layers) if layer in theirs[k]] for k in kinds
        ]
        sources.append([Source(*source) for source in zip(kinds, numbers, places, strict=True)])
        blocks.append(np.flatnonzero(numbers[0] >= 0))
    chains = [ChainRecord(chain.parts, (0,) * len(ours), chain.n_exact) for chain in snapshot.chains]
    return Snapshot(runs, chains, blocks, []), sources


def _note_blocks(cells: Columns, kinds: list[int], numbers: list[Columns], path: str) -> None:
    """Writes down which blocks of each kind go with those of the first; their tokens must lie at equal places."""
    first = cells[kinds[0]]
    for k, number in zip(kinds, numbers, strict=True):
        number[first // BLOCK_CELLS] = cells[k] // BLOCK_CELLS
    for k, number in zip(kinds, numbers, strict=True):
        same_place = cells[k] % BLOCK_CELLS == first % BLOCK_CELLS
        if not (same_place & (number[first // BLOCK_CELLS] == cells[k] // BLOCK_CELLS)).all():
            message = f"{path}: its tokens lie differently in the memory of layers with and without a window"
            raise StateWindowError(message, "give a context of the size that it was saved with")
