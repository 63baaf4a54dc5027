"""A matrix with what may stand beside it in the file: a bias, and a scale of the whole tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmkit.models.weights import Part, Weights

if TYPE_CHECKING:
    from llmkit.models.outline import Builder
    from llmkit.models.values import Value


@dataclass(frozen=True)
class Linear:
    """n_in values to n_out; `part` takes only some of the outputs.

    scale: when the `.scale` tensor acts: `first` is W x * scale + bias, `last` (W x + bias) * scale, or `never`.
    """

    weights: Weights
    name: str
    n_in: int
    n_out: int
    scale: str = "first"
    part: Part | None = None

    def apply(self, g: Builder, x: Value, into: Value | None = None) -> Value:
        """Adds the product to the graph, summed into `into` where that is given."""
        w = self.weights.matrix(f"{self.name}.weight", self.n_in, self.n_out, self.part)
        bias = self.weights.optional_vector(f"{self.name}.bias", self.n_out, part=self.part)
        if self.scale == "never" or not self.weights.has(f"{self.name}.scale"):
            return g.matmul(x, w, bias=bias, into=into)
        scale = self.weights.vector(f"{self.name}.scale", 1)
        before, after = (0, bias) if self.scale == "first" else (bias, 0)
        return g.affine(g.matmul(x, w), scale, before=before, after=after, into=into)
