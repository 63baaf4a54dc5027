"""How much each value counts in a search. Source: llama.cpp, ggml-quants; sums are taken in its order."""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.simd.lanes import square_root
from llmkit.simd.ops import load_f32, splat, vload, vstore


@helper
def sum_of_squares(x, n):
    """Of n float32, one after the other."""
    total = np.float32(0.0)
    for i in range(n):
        total += load_f32(x + 4 * i) * load_f32(x + 4 * i)
    return total


@helper
def weigh(weights, x, importance, sigma2, n):
    """weights[i] = importance[i] * sqrt(sigma2 + x[i]^2), or x[i]^2 without importance (0); n is 16 or 32."""
    for i in range(0, 4 * n, 64):
        square = vload(x + i) * vload(x + i)
        if importance:
            square = vload(importance + i) * square_root(splat(sigma2) + square)
        vstore(weights + i, square)
