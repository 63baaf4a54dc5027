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
    """`columns` int64 [1 + kinds][n]: positions, then cells by kind. Of tokens that a kind has dropped the cells are
    those that they had."""

    __slots__ = ("_data", "chain", "key", "n")

    def __init__(self, chain: Chain) -> None:
        self.chain, self.n = chain, 0
        self._data = np.empty((1 + len(chain.gone), 0), np.int64)
        self.key = b""
        self._add(chain)

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
        self._add(chain)
        self.chain = chain
        return True

    def _add(self, chain: Chain) -> None:
        """Writes the tokens from the n-th on."""
        if chain.n > self._data.shape[1]:
            grown = np.empty((len(self._data), max(chain.n + _ROOM, 2 * self.n)), np.int64)
            grown[:, : self.n] = self.columns
            self._data = grown
        at = self.n
        for run, start, stop in chain.cut(self.n, chain.n):
            self._data[0, at : at + stop - start] = run.data[POS, start:stop]
            self._data[1:, at : at + stop - start] = run.data[CELL:, start:stop]
            at += stop - start
        if at > 8 * len(self.key):  # the key is of half of the tokens or more
            # Sequences that lie in the same blocks from the first on are neighbours in the order of these.
            self.key = self._data[1, :at:BLOCK_CELLS].astype(">i8").tobytes()
        self.n = at

    @property
    def columns(self) -> npt.NDArray[np.int64]:
        return self._data[:, : self.n]

    @property
    def addresses(self) -> list[int]:
        """Of each column."""
        first, step = self._data.ctypes.data, self._data.strides[0]
        return [first + step * i for i in range(len(self._data))]

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
