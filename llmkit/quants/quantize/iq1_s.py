"""float32 to IQ1_S: for each 32 values one of 8 scales and a shift, for each 8 a pattern of 2048.

Source: llama.cpp, ggml-quants (quantize_row_iq1_s_impl).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.iq_grids import IQ1
from llmkit.quants.quantize.iq1 import (
    DOWN,
    ENTRIES,
    FIRST,
    IQ1_BYTES,
    OFF_GRID,
    ORDER,
    SCALE,
    SHIFT,
    UP,
    WEIGHTS,
    add_fit,
    find_pattern,
    keep_best_split,
    largest_magnitude,
    levels_of_split,
    no_split,
    sort_places,
)
from llmkit.quants.quantize.iq_levels import scale_levels
from llmkit.quants.quantize.iq_neighbours import table_quantizer
from llmkit.quants.quantize.iq_weights import sum_of_squares, weigh
from llmkit.simd.lanes import scratch
from llmkit.simd.lookup import lane_i32, table_f32
from llmkit.simd.ops import (
    f32_to_f16_bits,
    load_f32,
    load_i32,
    load_u16,
    splat,
    store_f32,
    store_u8,
    store_u16,
    vload,
    zero_bytes,
)

_LOW, _MIDDLE, _HIGH = (table_f32(levels) for levels in zip(UP, DOWN, strict=True))
_SMALLEST, _GROW = np.float32(1e-12), np.float32(1.125)
# Sums up to each place of the order, 33 twice over: lanes go through places and, for each, both shifts.
_part, _scales, _sums_x, _sums_w = scratch(IQ1_BYTES), scratch(64), scratch(384), scratch(384)


@helper
def _sum_up(part, x, sums_x, sums_w):
    sum_x, sum_w = np.float32(0.0), np.float32(0.0)
    for j in range(33):
        for at in (8 * j, 8 * j + 4):
            store_f32(sums_x + at, sum_x)
            store_f32(sums_w + at, sum_w)
        if j < 32:
            place = 4 * load_i32(part + ORDER + 4 * j)
            weight = load_f32(part + WEIGHTS + place)
            sum_x += weight * load_f32(x + place)
            sum_w += weight


@helper
def _find_split(part, sums_x, sums_w):
    """The best of all splits, solved exactly: 33 * 34 / 2 pairs of places and two shifts."""
    low, middle, high = _LOW(), _MIDDLE(), _HIGH()
    last_x, last_w = splat(load_f32(sums_x + 256)), splat(load_f32(sums_w + 256))
    for i in range(33):
        at_x, at_w = splat(load_f32(sums_x + 8 * i)), splat(load_f32(sums_w + 8 * i))
        start_x, start_w = (at_x - splat(load_f32(sums_x))) * low, (at_w - splat(load_f32(sums_w))) * low * low
        for j in range(i, 33, 8):
            x, w = vload(sums_x + 8 * j), vload(sums_w + 8 * j)
            qx = start_x + (x - at_x) * middle + (last_x - x) * high
            q2 = start_w + (w - at_w) * middle * middle + (last_w - w) * high * high
            keep_best_split(part, qx, q2, i, j, min(8, 33 - j), 2)


@helper
def _search(part, x, table, sums_x, sums_w):
    """Of 32 values, from WEIGHTS: the scale, not negative; whether levels go up; the bits above the patterns' 8."""
    if largest_magnitude(x, 32) < _SMALLEST:
        return np.float32(0.0), True, False
    sort_places(part, x, 32)
    _sum_up(part, x, sums_x, sums_w)
    no_split(part)
    _find_split(part, sums_x, sums_w)
    if load_i32(part + FIRST) < 0:
        return np.float32(0.0), True, False
    scale, goes_up = load_f32(part + SCALE), load_i32(part + SHIFT) == 0
    is_reversed = scale < 0
    levels_of_split(part, 32, is_reversed)
    if is_reversed:
        scale, goes_up = -scale, not goes_up
    n_off_grid = 0
    for k in range(4):
        find_pattern(part, k, x, scale, goes_up, table)
        n_off_grid += load_i32(part + OFF_GRID + 4 * k)
    if n_off_grid:
        qx, q2 = np.float32(0.0), np.float32(0.0)
        for k in range(4):
            qx, q2 = add_fit(part, k, x, goes_up, np.float32(1.0), qx, q2)
        if qx > 0 and q2 > 0:
            scale = qx / q2
    return scale, goes_up, True


@table_quantizer(IQ1, 8, 3, 3)
def quantize(source, target, n_rows, n_cols, importance, table):
    part, scales, sums_x, sums_w = _part(), _scales(), _sums_x(), _sums_w()
    zero_bytes(scales, 64)
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 50 * block
        weights = importance + 1024 * block % (4 * n_cols)
        zero_bytes(y, 50)
        sigma2 = np.float32(2.0) * sum_of_squares(x, 256) / np.float32(256.0)
        largest, going_down = np.float32(0.0), 0
        for i in range(8):
            weigh(part + WEIGHTS, x + 128 * i, weights + 128 * i, sigma2, 32)
            scale, goes_up, is_something = _search(part, x + 128 * i, table, sums_x, sums_w)
            store_f32(scales + 4 * i, scale)
            largest = largest if largest > scale else scale
            going_down |= (0 if goes_up else 1) << i
            if is_something:
                upper = 0
                for k in range(4):
                    place = load_i32(part + ENTRIES + 4 * k) >> 16 & 0xFFFF
                    store_u8(y + 2 + 4 * i + k, place)
                    upper |= place >> 8 << 3 * k
                store_u16(y + 34 + 2 * i, upper)
        if largest == 0:
            continue
        d = largest / np.float32(15.0)
        store_u16(y, f32_to_f16_bits(d * _GROW))
        levels = scale_levels(scales, d, 7)
        for i in range(8):
            upper = (lane_i32(levels, i) | (going_down >> i & 1) << 3) << 12
            store_u16(y + 34 + 2 * i, load_u16(y + 34 + 2 * i) | upper)
