"""What an importance matrix is made of: sums of the squares of each matrix's inputs, a column and an expert at a time.

Owns the sums and which matrices have them. A graph that is built with a collector gets an operation before each of
their products, which reads the float32 rows before they become 8-bit codes; a graph without one is what it always is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from llmkit.models.values import Slots, Value

if TYPE_CHECKING:
    from llmkit.models.graph import Graph
    from llmkit.models.weights import Matrix

OUTPUT = "output.weight"


@dataclass(frozen=True)
class Squares:
    """Of one matrix: sums float64 [n_expert, n_cols], counts int64 [n_expert] of their rows; without experts 1."""

    sums: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]

    @property
    def is_finite(self) -> bool:
        """Whether all sums are numbers that float32 can hold."""
        return bool((self.sums <= np.finfo(np.float32).max).all())

    def float32(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Copies of sums and counts as importance matrices have them."""
        return self.sums.astype(np.float32), self.counts.astype(np.float32)


@dataclass
class InputSquares:
    """Sums of all layers' matrices, and of `output.weight` if process_output; by name of tensor. For one context."""

    process_output: bool = False
    squares: dict[str, Squares] = field(default_factory=dict)

    def add_to(self, graph: Graph, x: Value, w: Matrix) -> None:
        """Adds what collects the inputs x of w to a graph, unless w has none, or is another part of a tensor that has.

        Which tensors: as in llama.cpp b11434, tools/imatrix.
        """
        name = w.name.partition("[")[0]
        if name in self.squares or not (name.startswith("blk.") or (self.process_output and name == OUTPUT)):
            return
        n_expert = x.rows.n_expert if isinstance(x.rows, Slots) else 1
        self.squares[name] = Squares(np.zeros((n_expert, w.n_cols)), np.zeros(n_expert, np.int64))
        graph.column_squares(x, self.squares[name].sums.ctypes.data, self.squares[name].counts.ctypes.data)

    @property
    def has_output(self) -> bool:
        """Whether there are sums for `output.weight`."""
        return OUTPUT in self.squares
