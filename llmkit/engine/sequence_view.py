"""Positions and cells of a sequence's tokens as kernels read them: one array a column, kept from batch to batch.

A chain that has only grown since the last batch costs what is new, however long it is. Knows no kernel.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL, POS, Chain

_ROOM = 256  # tokens: by so many a column may grow before it moves


class View:
    """Columns int64 [1 + kinds][n]: positions, then cells by kind, and their addresses. Of tokens that a kind has
    dropped the cells are those that they had. key: sequences that lie in the same blocks from the first on are
    neighbours in the order of these bytes."""

    __slots__ = ("_data", "addresses", "chain", "key", "n")

    def __init__(self, chain: Chain) -> None:
        self.chain, self.n, self.key = chain, 0, b""
        self._move(np.empty((1 + len(chain.gone), chain.n + _ROOM), np.int64))
        for run, start, stop in chain.parts:
            self._add(run.data[:, start:stop])

    def _move(self, data: npt.NDArray[np.int64]) -> None:
        self._data, first, step = data, data.ctypes.data, data.strides[0]
        self.addresses = [first + step * i for i in range(len(data))]

    def follow(self, chain: Chain) -> bool:
        """Becomes the view of this chain, if it is the old one with tokens behind it; else False."""
        if chain is self.chain:
            return True
        old, new = self.chain.parts, chain.parts
        if not old or len(new) < len(old) or old[:-1] != new[: len(old) - 1]:
            return False
        last, now = old[-1], new[len(old) - 1]
        if last.run is not now.run or last.start != now.start or last.stop > now.stop:
            return False
        if chain.n > self._data.shape[1]:
            grown = np.empty((len(self._data), 2 * chain.n), np.int64)
            grown[:, : self.n] = self._data[:, : self.n]
            self._move(grown)
        self._add(chain.rows(self.n, chain.n))
        self.chain = chain
        return True

    def _add(self, rows: npt.NDArray[np.int64]) -> None:
        """Tokens behind the n-th, as a chain has them."""
        at, self.n = self.n, self.n + rows.shape[1]
        self._data[0, at : self.n] = rows[POS]
        self._data[1:, at : self.n] = rows[CELL:]
        if self.n > 8 * len(self.key):  # it is of half of the tokens at least
            self.key = self._data[1, : self.n : BLOCK_CELLS].astype(">i8").tobytes()

    def first_visible(self, positions: npt.NDArray[np.int64], window: int) -> npt.NDArray[np.int64]:
        """Of tokens at these positions, the first token that each sees through the window."""
        found: npt.NDArray[np.int64] = np.searchsorted(self._data[0, : self.n], positions - window, "right")
        return found

    def n_common(self, other: View) -> int:
        """How many blocks of 32 tokens, from the first on, have the same positions and cells in both."""
        n = min(self.n, other.n) // BLOCK_CELLS * BLOCK_CELLS
        if self is other or n == 0:
            return n // BLOCK_CELLS
        if self._data[1, 0] != other._data[1, 0]:
            return 0
        differ = (self._data[:, :n] != other._data[:, :n]).any(axis=0)
        first = int(differ.argmax())
        return first // BLOCK_CELLS if differ[first] else n // BLOCK_CELLS
