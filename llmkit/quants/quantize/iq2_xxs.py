"""float32 to IQ2_XXS: for each 32 values one of 16 scales, for each 8 a pattern of 256 and 7 signs.

Source: llama.cpp, ggml-quants (quantize_row_iq2_xxs_impl, make_qp_quants).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.iq_grids import IQ2_XXS
from llmkit.quants.quantize.iq_levels import scale_levels
from llmkit.quants.quantize.iq_neighbours import table_quantizer
from llmkit.quants.quantize.iq_part import (
    CHOSEN,
    PART_BYTES,
    VALUES,
    WEIGHTS,
    fit_once_more,
    nothing,
    prepare_search,
    start_search,
    try_scales,
)
from llmkit.quants.quantize.iq_signs import make_signs_even, positive_scale, signs_of_32, split_signs
from llmkit.quants.quantize.iq_weights import sum_of_squares, weigh
from llmkit.simd.lanes import nearest_int, scratch, splat_i32, to_f32, where
from llmkit.simd.lookup import (
    first_lane,
    lane_f32,
    lane_i32,
    lanes_after,
    least_i32,
    nearest_int1,
    table_f32,
)
from llmkit.simd.ops import (
    f32_to_f16_bits,
    load_f32,
    load_i32,
    splat,
    store_f32,
    store_i32,
    store_u8,
    store_u16,
    vload_splat,
    zero_bytes,
)

_STEPS = table_f32((np.arange(-6, 10, dtype=np.float32) * np.float32(0.1) + np.float32(5)).tolist())
_tries = np.array([0, -4, -3, -2, -1, 1, 2, 3, 4], np.float32) * np.float32(0.1) + np.float32(4)
_LINEAR_STEPS = table_f32([*_tries.tolist(), *[4.0] * 7])
_SMALLEST = np.float32(1e-15)
_part, _scales, _levels = scratch(PART_BYTES), scratch(64), scratch(128)


@helper
def _fit_linear(part, levels, largest):
    """A first scale: of 32 values as scale * (0..4), in nine steps, then level by level while that is better."""
    inverse = _LINEAR_STEPS() / splat(largest)
    scale, error = splat(1.0) / inverse, splat(0.0)
    is_first = ~lanes_after(0)
    for i in range(0, 128, 4):
        level = least_i32(nearest_int(inverse * vload_splat(part + VALUES + i)), splat_i32(4))
        level = where(is_first, level & splat_i32(255), level)  # there the first try's levels are bytes, even below 0
        difference = vload_splat(part + VALUES + i) - scale * to_f32(level)
        error = error + vload_splat(part + WEIGHTS + i) * difference * difference
    best, chosen, ahead = lane_f32(error, 0), 0, ~is_first & ~lanes_after(8)
    while True:
        c = first_lane(ahead & (error < splat(best)))
        if c == 16:
            break
        best, chosen, ahead = lane_f32(error, c), c, ahead & lanes_after(c)
    return _improve_levels(part, levels, lane_f32(inverse, chosen))


@helper
def _improve_levels(part, levels, inverse):
    """From 1 / scale: the scale after up to five rounds of moving each level to where it fits best."""
    sum_lx, sum_l2 = np.float32(0.0), np.float32(0.0)
    for i in range(0, 128, 4):
        x, w = load_f32(part + VALUES + i), load_f32(part + WEIGHTS + i)
        level = min(4, nearest_int1(inverse * x))
        store_i32(levels + i, level & 255)
        sum_lx += w * x * np.float32(level)
        sum_l2 += w * np.float32(level) * np.float32(level)
    for _ in range(5):
        n_changed = 0
        for i in range(0, 128, 4):
            x, w = load_f32(part + VALUES + i), load_f32(part + WEIGHTS + i)
            old = np.float32(load_i32(levels + i))
            lx, l2 = sum_lx - w * x * old, sum_l2 - w * old * old
            if lx > 0 and l2 > 0:
                level = min(4, nearest_int1(x * l2 / lx))
                if level != load_i32(levels + i):
                    new = np.float32(level)
                    lx, l2 = lx + w * x * new, l2 + w * new * new
                    if lx * lx * sum_l2 > sum_lx * sum_lx * l2:
                        store_i32(levels + i, level & 255)
                        sum_lx, sum_l2 = lx, l2
                        n_changed += 1
        if not n_changed:
            break
    return sum_lx / sum_l2 if sum_l2 > 0 else np.float32(0.0)


@helper
def _search(part, levels, x, importance, sigma2, table):
    """The scale of 32 values, not negative; 0 where they are nothing. CHOSEN and SIGNS are for the file."""
    weigh(part + WEIGHTS, x, importance, sigma2, 32)
    split_signs(part, x, 32)
    make_signs_even(part, x, 32)
    largest = prepare_search(part, 32)
    if largest < _SMALLEST:
        return nothing(part)
    scale = _fit_linear(part, levels, largest)
    top = scale * np.float32(3.0)
    if top <= 0:
        return nothing(part)
    start_search(part, 4, table, scale, 0)
    try_scales(part, 32, 8, table, _STEPS() / splat(top), 13)
    fit_once_more(part, 32, 8, table, True)
    return positive_scale(part, 32, 127)


@table_quantizer(IQ2_XXS, 8, 3, 2)
def quantize(source, target, n_rows, n_cols, importance, table):
    part, scales, linear = _part(), _scales(), _levels()
    zero_bytes(scales, 64)
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 66 * block
        weights = importance + 1024 * block % (4 * n_cols)
        sigma2 = sum_of_squares(x, 256) / np.float32(256.0)
        largest = np.float32(0.0)
        for i in range(8):
            scale = _search(part, linear, x + 128 * i, weights + 128 * i, sigma2, table)
            store_f32(scales + 4 * i, scale)
            largest = largest if largest > scale else scale
            for k in range(4):
                store_u8(y + 2 + 8 * i + k, load_i32(part + CHOSEN + 4 * k) >> 16)
            store_i32(y + 6 + 8 * i, signs_of_32(part))
        if largest == 0:
            zero_bytes(y, 66)
            continue
        d = largest / np.float32(31.0)
        store_u16(y, f32_to_f16_bits(d))
        levels = scale_levels(scales, d, 15)
        for i in range(8):
            store_i32(y + 6 + 8 * i, load_i32(y + 6 + 8 * i) | lane_i32(levels, i) << 28)
