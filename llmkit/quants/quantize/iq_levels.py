"""The scales of a block's parts as small numbers: 1 + 2 l times the block's scale. Source: llama.cpp, ggml-quants."""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.simd.lanes import clamp, nearest_int
from llmkit.simd.lookup import lane_i32
from llmkit.simd.ops import splat, store_u8, vload


@helper
def scale_levels(scales, d, most):
    """1 + 2 l of up to 16 scales (float32) as multiples of d: the l, 0..most."""
    return clamp(nearest_int(splat(0.5) * (splat(np.float32(1.0) / d) * vload(scales) - splat(1.0))), 0, most)


@helper
def store_scale_pairs(target, levels, n_bytes):
    """Levels of 4 bits, two a byte, the first lower."""
    for i in range(n_bytes):
        store_u8(target + i, lane_i32(levels, 2 * i) | lane_i32(levels, 2 * i + 1) << 4)
