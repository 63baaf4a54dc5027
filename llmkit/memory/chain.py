"""What a sequence holds at one moment: token ids, positions, and cells, in order of position. Knows no blocks' owners.

A chain never changes; an operation makes a new one. Its columns lie in runs that chains share, as slices of one array
do: a copy of a sequence shares all of them, and whoever goes on first writes behind what the others see.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from llmkit.memory.block_pool import BLOCK_CELLS

Columns = npt.NDArray[np.int64]

# Rows of a run: token id, position, the position that K is rotated for, then the cell in each kind of memory.
TOKEN, POS, ROTATED, CELL = 0, 1, 2, 3

_CAPACITY = 64

NEVER = 1 << 62  # of `changed_from`: no token


class Run:
    """Columns with room to grow: int64 [CELL + kinds][capacity], of which the first `n` are taken."""

    __slots__ = ("data", "n")

    def __init__(self, rows: Columns) -> None:
        self.n = rows.shape[1]
        self.data = np.empty((len(rows), max(_CAPACITY, self.n)), np.int64)
        self.data[:, : self.n] = rows

    @classmethod
    def closed(cls, rows: Columns) -> Run:
        """Columns that nobody writes behind: they take the memory of `rows` and no more."""
        run = cls.__new__(cls)
        run.data, run.n = rows, -1
        return run

    def extend(self, rows: Columns) -> None:
        """Writes columns behind the last. Those before keep their values, and their memory while a view is held."""
        n = self.n + rows.shape[1]
        if n > self.data.shape[1]:
            grown = np.empty((len(self.data), max(n, 2 * self.data.shape[1])), np.int64)
            grown[:, : self.n] = self.data[:, : self.n]
            self.data = grown
        self.data[:, self.n : n] = rows
        self.n = n


class Part(NamedTuple):
    """Columns start .. stop of a run."""

    run: Run
    start: int
    stop: int


class Extent(NamedTuple):
    """Cells start .. start + n of one block, holding consecutive tokens."""

    block: int
    start: int
    n: int


class Chain:
    """Parts in order of position; equal positions in order of arrival.

    gone: for each kind how many tokens from the first on have no cells any more (their column is stale). sorted: cells
    of a block lie in the order of their tokens. turned: every K is rotated for its position. changed_from: the first
    token whose cells may hold something else than computing all tokens in order gives, since one before it was removed
    or moved; NEVER for none. The i-th token before that has position i, and place i mod 32 of a block.
    """

    __slots__ = ("_blocks", "changed_from", "gone", "n", "parts", "sorted", "turned")

    def __init__(
        self,
        parts: tuple[Part, ...],
        gone: tuple[int, ...],
        in_order: bool = True,
        turned: bool = True,
        changed_from: int = NEVER,
    ):
        self.parts, self.gone, self.sorted, self.turned = parts, gone, in_order, turned
        self.changed_from = changed_from
        self.n = sum([part.stop - part.start for part in parts])
        self._blocks: tuple[Columns, ...] | None = None

    @property
    def n_exact(self) -> int:
        """How many tokens, from the first on, hold what computing them in order gives."""
        return min(self.n, self.changed_from)

    def column(self, row: int) -> Columns:
        """int64 [n]: one row of all parts; a view where there is one part."""
        if len(self.parts) == 1:
            run, start, stop = self.parts[0]
            return run.data[row, start:stop]
        if not self.parts:
            return np.empty(0, np.int64)
        return np.concatenate([part.run.data[row, part.start : part.stop] for part in self.parts])

    def tail(self, row: int, first: int) -> Columns:
        """One row of the tokens from `first` on; a view where they lie in the last part."""
        if first == 0:
            return self.column(row)
        run, start, stop = self.parts[-1]
        if self.n - first <= stop - start:
            return run.data[row, stop - self.n + first : stop]
        return np.concatenate([part.run.data[row, part.start : part.stop] for part in self.cut(first, self.n)])

    def rows(self, first: int, last: int) -> Columns:
        """All rows of tokens first .. last; a view where they lie in the last part."""
        offset = self.n
        for run, start, stop in reversed(self.parts):
            offset -= stop - start
            if first >= offset:
                if last - offset <= stop - start:
                    return run.data[:, start + first - offset : start + last - offset]
                break
        cut = self.cut(first, last)
        if not cut:
            return np.empty((CELL + len(self.gone), 0), np.int64)
        return np.concatenate([part.run.data[:, part.start : part.stop] for part in cut], axis=1)

    def cut(self, first: int, last: int) -> tuple[Part, ...]:
        """The parts of tokens first .. last."""
        if first == 0 and last == self.n:
            return self.parts
        parts, offset = [], 0
        for run, start, stop in self.parts:
            a, b = max(first - offset, 0), min(last - offset, stop - start)
            if a < b:
                parts.append(Part(run, start + a, start + b))
            offset += stop - start
        return tuple(parts)

    @property
    def pos_max(self) -> int:
        """The last token's position, -1 without tokens."""
        if not self.n:
            return -1
        run, _, stop = self.parts[-1]
        return int(run.data[POS, stop - 1])

    def find(self, pos: int) -> int:
        """How many tokens have a smaller position."""
        if pos > self.pos_max:
            return self.n
        return int(np.searchsorted(self.column(POS), pos)) if pos > 0 else 0

    def blocks(self, kind: int) -> Columns:
        """The blocks of this kind that the tokens lie in, each once, sorted."""
        if self._blocks is None:
            self._blocks = tuple(self._find_blocks(k) for k in range(len(self.gone)))
        return self._blocks[kind]

    def _find_blocks(self, kind: int) -> Columns:
        numbers = self.column(CELL + kind)[self.gone[kind] :] // BLOCK_CELLS
        if numbers.size:
            numbers = np.unique(numbers[np.flatnonzero(np.diff(numbers, prepend=-1))])
        return numbers

    def extents(self, kind: int = 0) -> list[Extent]:
        """The cells of this kind as runs within blocks."""
        cells = self.column(CELL + kind)[self.gone[kind] :]
        starts = np.flatnonzero((np.diff(cells, prepend=-2) != 1) | (cells % BLOCK_CELLS == 0))
        sizes = np.diff(starts, append=cells.size)
        return [
            Extent(int(cells[i]) // BLOCK_CELLS, int(cells[i]) % BLOCK_CELLS, int(n))
            for i, n in zip(starts, sizes, strict=True)
        ]
