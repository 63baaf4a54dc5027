"""What a family's file provides, and the parts that several families build in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmkit.errors import MetadataError
from llmkit.models.config import DAMAGED, Config
from llmkit.models.graph import Graph, Value
from llmkit.models.weights import Weights

MAX_FREQUENCY = 1024.0  # radians a token; usual are 1 and less, and the kernel's angles end at 2^30


class Family(Protocol):
    """One architecture: `build` adds a whole forward pass to the graph and returns the logits."""

    def build(self, g: Graph, config: Config, weights: Weights) -> Value: ...


def rope_frequencies(
    base: float, scale: float, n_rot: int, factors: npt.NDArray[np.float32] | None
) -> npt.NDArray[np.float64]:
    """Radians a position of each pair: scale * base^(-2i / n_rot) / factors[i], float64 [n_rot / 2].

    MetadataError for what no angle can be made of.
    """
    frequencies = scale * np.array([base ** (-2.0 * i / n_rot) for i in range(n_rot // 2)], np.float64)
    if factors is not None:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            frequencies = frequencies / factors.astype(np.float64)
    if not np.all((frequencies >= 0) & (frequencies <= MAX_FREQUENCY)):  # NaN fails too
        message = f"the file's RoPE turns by up to {np.max(frequencies):g} radians a token, which is no angle"
        raise MetadataError(message, f"rope.freq_base, rope.scaling or the tensor rope_freqs is wrong: {DAMAGED}")
    return frequencies


@dataclass
class Linear:
    """A matrix with what may stand beside it in the file: a bias, and a scale of the whole tensor.

    scale_first: W x * scale + bias; otherwise (W x + bias) * scale.
    """

    weights: Weights
    name: str
    n_in: int
    n_out: int
    has_bias: bool = True
    has_scale: bool = True
    scale_first: bool = True

    def apply(self, g: Graph, x: Value, into: Value | None = None) -> Value:
        """Adds the product to the graph, summed into `into` where that is given."""
        w = self.weights.matrix(f"{self.name}.weight", self.n_in, self.n_out)
        bias = self.weights.optional_vector(f"{self.name}.bias", self.n_out) if self.has_bias else 0
        if not (self.has_scale and self.weights.has(f"{self.name}.scale")):
            return g.matmul(x, w, bias=bias, into=into)
        scale = self.weights.vector(f"{self.name}.scale", 1)
        y = g.matmul(x, w)
        return g.affine(
            y, scale, before=0 if self.scale_first else bias, after=bias if self.scale_first else 0, into=into
        )


def output_logits(g: Graph, config: Config, weights: Weights, x: Value) -> Value:
    """The final norm and the output matrix (the embedding's where there is none), for the rows that are wanted."""
    h = g.rms_norm(g.gather_outputs(x), weights.vector("output_norm.weight", config.n_embd), config.norm_eps)
    name = "output" if weights.has("output.weight") else "token_embd"
    bias = weights.optional_vector("output.bias", config.n_vocab)
    return g.matmul(h, weights.matrix(f"{name}.weight", config.n_embd, config.n_vocab), bias=bias)
