"""A sequence: the handle by which a session's chain of tokens is named. What it holds at the moment is its `chain`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmkit.memory.chain import CELL, POS, TOKEN, Chain, Columns, Extent


class Sequence:
    """Only KvCache changes `chain`, by putting another in its place."""

    __slots__ = ("__weakref__", "chain")

    def __init__(self, n_kinds: int = 1) -> None:
        self.chain = Chain((), (0,) * n_kinds)

    @property
    def n_tokens(self) -> int:
        return self.chain.n

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Token ids, int32 [n_tokens] (a copy)."""
        return self.chain.column(TOKEN).astype(np.int32)

    @property
    def positions(self) -> Columns:
        """Positions, int64 [n_tokens], never falling."""
        return self.chain.column(POS).copy()

    @property
    def cells(self) -> Columns:
        """Cells of the first kind of memory (block * 32 + place), int64 [n_tokens]."""
        return self.chain.column(CELL).copy()

    @property
    def blocks(self) -> list[int]:
        """Blocks of the first kind, each once, sorted."""
        blocks: list[int] = self.chain.blocks(0).tolist()
        return blocks

    @property
    def extents(self) -> list[Extent]:
        """The cells as runs within blocks."""
        return self.chain.extents()
