"""float32 to IQ3_XXS: for each 32 values one of 16 scales, for each 4 a pattern of 256, for each 8 7 signs.

Source: llama.cpp, ggml-quants (quantize_row_iq3_xxs_impl).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.iq_grids import IQ3_XXS
from llmkit.quants.quantize.iq_levels import scale_levels
from llmkit.quants.quantize.iq_neighbours import table_quantizer
from llmkit.quants.quantize.iq_part import (
    CHOSEN,
    PART_BYTES,
    WEIGHTS,
    any_off_grid,
    fit_once_more,
    nothing,
    prepare_search,
    start_search,
    try_scales,
)
from llmkit.quants.quantize.iq_signs import make_signs_even, positive_scale, signs_of_32, split_signs
from llmkit.quants.quantize.iq_weights import sum_of_squares, weigh
from llmkit.simd.lanes import scratch
from llmkit.simd.lookup import lane_i32, table_f32
from llmkit.simd.ops import f32_to_f16_bits, load_i32, splat, store_f32, store_i32, store_u8, store_u16, zero_bytes

_steps = np.arange(-15, 16, dtype=np.float32) * np.float32(0.2) + np.float32(15)
_FIRST_16, _LAST_15 = table_f32(_steps[:16].tolist()), table_f32(_steps[16:].tolist())
_SMALLEST, _GROW = np.float32(1e-8), np.float32(1.0125)
_part, _scales = scratch(PART_BYTES), scratch(64)


@helper
def _search(part, x, importance, sigma2, table):
    """The scale of 32 values, not negative; 0 where they are nothing. CHOSEN and SIGNS are for the file."""
    weigh(part + WEIGHTS, x, importance, sigma2, 32)
    split_signs(part, x, 32)
    make_signs_even(part, x, 32)
    largest = prepare_search(part, 32)
    if largest < _SMALLEST:
        return nothing(part)
    start_search(part, 8, table, largest / np.float32(15.0), 0)
    try_scales(part, 32, 4, table, _FIRST_16() / splat(largest), 16)
    try_scales(part, 32, 4, table, _LAST_15() / splat(largest), 15)
    if any_off_grid(part, 8):
        fit_once_more(part, 32, 4, table, False)
    return positive_scale(part, 32, 127)


@table_quantizer(IQ3_XXS, 4, 8, 2)
def quantize(source, target, n_rows, n_cols, importance, table):
    part, scales = _part(), _scales()
    zero_bytes(scales, 64)
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 98 * block
        weights = importance + 1024 * block % (4 * n_cols) if importance else 0
        sigma2 = np.float32(2.0) * sum_of_squares(x, 256) / np.float32(256.0)
        largest = np.float32(0.0)
        for i in range(8):
            scale = _search(part, x + 128 * i, weights + 128 * i if weights else 0, sigma2, table)
            store_f32(scales + 4 * i, scale)
            largest = largest if largest > scale else scale
            for k in range(8):
                store_u8(y + 2 + 8 * i + k, load_i32(part + CHOSEN + 4 * k) >> 16)
            store_i32(y + 66 + 4 * i, signs_of_32(part))
        if largest == 0:
            zero_bytes(y, 98)
            continue
        d = largest / np.float32(31.0)
        store_u16(y, f32_to_f16_bits(d * _GROW))
        levels = scale_levels(scales, d, 15)
        for i in range(8):
            store_i32(y + 66 + 4 * i, load_i32(y + 66 + 4 * i) | lane_i32(levels, i) << 28)
