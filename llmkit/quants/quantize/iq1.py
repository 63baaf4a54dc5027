"""What IQ1_S and IQ1_M share: of sorted values, where to split them into -1, 0 and 1, and the nearest patterns.

Owns the layout of a part's scratch memory. Levels 0, 1, 2 stand for -1, 0, 1 and a shift of 1/8 up or down.
Source: llama.cpp, ggml-quants (quantize_row_iq1_s_impl, quantize_row_iq1_m_impl); sums are taken in its order.
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.quantize.iq_nearest import nearest_of_8
from llmkit.quants.quantize.iq_neighbours import FIRST_LOT_3
from llmkit.simd.lanes import absolute, larger, splat_i32, vstore_i32, where
from llmkit.simd.lookup import first_lane, lane_f32, lanes_after, lanes_before, table_f32
from llmkit.simd.ops import hmax, load_f32, load_i32, splat, store_f32, store_i32, vload, vload_splat

# Byte offsets of float32 or int32.
WEIGHTS, LEVELS, ORDER = 0, 128, 256  # of up to 32 values; ORDER: their places, the smallest value first
BEST, SCALE, FIRST, SECOND, SHIFT = 384, 388, 392, 396, 400  # the best split: levels change at FIRST and SECOND
ENTRIES, OFF_GRID = 416, 432  # the patterns' entries (iq_neighbours); whether a pattern was not in the codebook
IQ1_BYTES = 448

# Levels with the shift up and down. In memory a level is a number 0, 1, 2.
UP, DOWN = (-0.875, 0.125, 1.125), (-1.125, -0.125, 0.875)
UP_LEVELS, DOWN_LEVELS = table_f32([*UP, 0.0]), table_f32([*DOWN, 0.0])


@helper
def largest_magnitude(x, n_values):
    largest = absolute(vload(x))
    for i in range(64, 4 * n_values, 64):
        largest = larger(largest, absolute(vload(x + i)))
    return hmax(largest)


@helper
def sort_places(part, x, n_values):
    """ORDER: a value's rank is how many are smaller, or equal and before it."""
    for start in range(0, n_values, 16):
        values, rank = vload(x + 4 * start), splat_i32(0)
        for j in range(n_values):
            other = vload_splat(x + 4 * j)
            before = (other < values) | (other == values) & lanes_after(j - start)
            rank = rank + where(before, splat_i32(1), splat_i32(0))
        vstore_i32(part + LEVELS + 4 * start, rank)
        vstore_i32(part + ORDER + 4 * start, splat_i32(0))  # NaN has no rank of its own, and leaves a place unset
    for i in range(n_values):
        store_i32(part + ORDER + 4 * load_i32(part + LEVELS + 4 * i), i)


@helper
def no_split(part):
    """Before any split was tried."""
    store_f32(part + BEST, np.float32(-3.4028234663852886e38))
    store_i32(part + FIRST, -1)


@helper
def keep_best_split(part, qx, q2, first, second, n_second, n_shifts):
    """Of n_second places in order, from `second` on, with n_shifts lanes each, every one that is better than BEST."""
    best, ahead = load_f32(part + BEST), lanes_before(n_second * n_shifts) & (q2 > splat(0.0))
    while True:
        c = first_lane(ahead & (qx * qx > splat(best) * q2))
        if c == 16:
            break
        scale = lane_f32(qx, c) / lane_f32(q2, c)
        best, ahead = scale * lane_f32(qx, c), ahead & lanes_after(c)
        store_f32(part + BEST, best)
        store_f32(part + SCALE, scale)
        store_i32(part + FIRST, first)
        store_i32(part + SECOND, second + c // n_shifts)
        store_i32(part + SHIFT, c % n_shifts)


@helper
def levels_of_split(part, n_values, is_reversed):
    """LEVELS of the best split; 2 - level where its scale is below 0."""
    for j in range(n_values):
        level = (j >= load_i32(part + FIRST)) + (j >= load_i32(part + SECOND))
        if is_reversed:
            level = 2 - level
        store_i32(part + LEVELS + 4 * load_i32(part + ORDER + 4 * j), level)


@helper
def find_pattern(part, k, x, scale, goes_up, table):
    """ENTRIES and OFF_GRID of pattern k, 8 of the values at x."""
    combination = 0
    for i in range(7, -1, -1):
        combination = 3 * combination + load_i32(part + LEVELS + 32 * k + 4 * i)
    entry, off_grid = load_i32(table + 4 * combination), 0
    if entry < 0:
        lots, n_lots, off_grid = table + FIRST_LOT_3 + 64 * (-entry >> 5), -entry & 31, 1
        levels = splat(scale) * (UP_LEVELS() if goes_up else DOWN_LEVELS())
        entry = nearest_of_8(lots, n_lots, levels, x + 32 * k, part + WEIGHTS + 32 * k)
    store_i32(part + ENTRIES + 4 * k, entry)
    store_i32(part + OFF_GRID + 4 * k, off_grid)


@helper
def add_fit(part, k, x, goes_up, factor, sum_qx, sum_q2):
    """sum_qx and sum_q2 with the terms of pattern k added: levels are `factor` times 1, 0, 1 with their shift."""
    shift, entry = np.float32(0.125 if goes_up else -0.125), load_i32(part + ENTRIES + 4 * k)
    for i in range(8):
        q = (np.float32((entry >> 2 * i & 3) - 1) + shift) * factor
        weighted = load_f32(part + WEIGHTS + 32 * k + 4 * i) * q
        sum_qx += weighted * load_f32(x + 32 * k + 4 * i)
        sum_q2 += weighted * q
    return sum_qx, sum_q2
