"""What IQ4_NL and IQ4_XS share: the scale of 32 values, each of which is scale * one of 16 values, not evenly spread.

Source: llama.cpp, ggml-quants (quantize_row_iq4_nl_impl, kvalues_iq4nl); sums are taken in its order.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.quantize.iq_weights import weigh
from llmkit.simd.lanes import absolute, splat_i32, store_low_bytes, where
from llmkit.simd.lookup import first_lane, lane_f32, lanes_after, lookup, table_f32
from llmkit.simd.ops import hmax, load_f32, splat, vload, vload_splat, vmax

_LEVELS = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
_VALUES = table_f32(_LEVELS)
# Lane i is halfway between levels i - 1 and i. A distance from there is exact in float32, so that the nearer level of a
# value is found by one comparison.
_HALFWAY = table_f32([0.0, *[(low + high) / 2 for low, high in pairwise(_LEVELS)]])
# What the value of largest magnitude becomes: -134 to -120; lane 0 is another first try.
_LARGEST = table_f32([0.0, *[-127.0 + step for step in range(-7, 8)]])
_SMALLEST = np.float32(1e-15)


@helper
def nearest_level(x):
    """The index, 0..15, of the level nearest to each lane; the upper of two equally near."""
    at = splat_i32(0)
    for bit in (8, 4, 2, 1):
        above = at | splat_i32(bit)
        at = where(x < lookup(_HALFWAY(), above), at, above)
    return at


@helper
def _first_largest(x):
    """Of 32 values the first with the largest magnitude."""
    low, high = absolute(vload(x)), absolute(vload(x + 64))
    largest = splat(hmax(vmax(low, high)))
    lane = first_lane(low == largest)
    return load_f32(x + 4 * (lane if lane < 16 else (16 + first_lane(high == largest)) & 31))  # & for NaN: no lane


@helper
def find_scale(weights, x, importance, sigma2):
    """The scale of 32 values, of either sign; weights: scratch memory of 128 bytes."""
    weigh(weights, x, importance, sigma2, 32)
    largest = _first_largest(x)
    if abs(largest) < _SMALLEST:
        return np.float32(0.0)
    inverse = _LARGEST() / splat(largest)
    first = np.float32(1.0) / (-largest / np.float32(-127.0))
    inverse = where(lanes_after(0), inverse, splat(first))
    qx, q2 = splat(0.0), splat(0.0)
    for i in range(0, 128, 4):
        value = vload_splat(x + i)
        q = lookup(_VALUES(), nearest_level(inverse * value))
        weighted = vload_splat(weights + i) * q
        qx, q2 = qx + weighted * value, q2 + weighted * q
    scale = lane_f32(qx, 0) / lane_f32(q2, 0) if lane_f32(q2, 0) > 0 else np.float32(0.0)
    best, ahead = scale * lane_f32(qx, 0), lanes_after(0) & (q2 > splat(0.0))
    while True:
        c = first_lane(ahead & (qx * qx > splat(best) * q2))
        if c == 16:
            return scale
        scale = lane_f32(qx, c) / lane_f32(q2, c)
        best, ahead = scale * lane_f32(qx, c), ahead & lanes_after(c)


@helper
def store_levels(target, x, inverse):
    """The levels of 32 values nearest to inverse * x: value i in the low, i + 16 in the high half of byte i."""
    low, high = nearest_level(splat(inverse) * vload(x)), nearest_level(splat(inverse) * vload(x + 64))
    store_low_bytes(target, low | high << splat_i32(4))
