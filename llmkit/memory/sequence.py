"""A sequence: the chain of tokens of one session, and the cells that hold their K and V."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from llmkit.memory.block_pool import BLOCK_CELLS


@dataclass(frozen=True)
class Extent:
    """Cells start .. start + n of one block, holding consecutive tokens of a sequence."""

    block: int
    start: int
    n: int


class Sequence:
    """Token ids in order, with the cell of each: `cells[i]` is block * 32 + cell.

    Cells are the truth; `extents` is the same as runs. Only KvCache changes a sequence.
    """

    def __init__(self) -> None:
        self._tokens = np.empty(64, np.int32)
        self._cells = np.empty(64, np.int64)
        self.n_tokens = 0

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Token ids, int32 [n_tokens] (a view)."""
        return self._tokens[: self.n_tokens]

    @property
    def cells(self) -> npt.NDArray[np.int64]:
        """Cells, int64 [n_tokens] (a view; its address changes when the sequence grows)."""
        return self._cells[: self.n_tokens]

    @property
    def blocks(self) -> list[int]:
        """Blocks referenced, each once, in order of first use."""
        numbers = self.cells // BLOCK_CELLS
        _, first = np.unique(numbers, return_index=True)
        return [int(numbers[i]) for i in np.sort(first)]

    @property
    def extents(self) -> list[Extent]:
        """The cells as runs within blocks."""
        cells = self.cells
        breaks = np.flatnonzero((np.diff(cells) != 1) | (cells[1:] % BLOCK_CELLS == 0)) + 1
        starts = np.concatenate([[0], breaks, [cells.size]]).astype(np.int64)
        return [
            Extent(int(cells[a]) // BLOCK_CELLS, int(cells[a]) % BLOCK_CELLS, int(b - a))
            for a, b in pairwise(starts)
            if b > a
        ]

    def append(self, tokens: npt.NDArray[np.int32], cells: npt.NDArray[np.int64]) -> None:
        """Adds tokens whose K and V will be written to `cells`."""
        n = self.n_tokens + tokens.size
        if n > self._cells.size:
            self._tokens = np.resize(self._tokens, max(n, 2 * self._tokens.size))
            self._cells = np.resize(self._cells, self._tokens.size)  # last: the check above is about both
        self._tokens[self.n_tokens : n] = tokens
        self._cells[self.n_tokens : n] = cells
        self.n_tokens = n

    def truncate(self, n_tokens: int) -> None:
        """Forgets the tokens from `n_tokens` on."""
        assert 0 <= n_tokens <= self.n_tokens
        self.n_tokens = n_tokens
