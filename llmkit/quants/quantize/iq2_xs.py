"""float32 to IQ2_XS: for each 16 values one of 16 scales, for each 8 a pattern of 512 and 7 signs.

Source: llama.cpp, ggml-quants (quantize_row_iq2_xs_impl).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.iq_grids import IQ2_XS
from llmkit.quants.quantize.iq_levels import scale_levels, store_scale_pairs
from llmkit.quants.quantize.iq_neighbours import table_quantizer
from llmkit.quants.quantize.iq_part import (
    CHOSEN,
    PART_BYTES,
    SIGNS,
    WEIGHTS,
    any_off_grid,
    fit_once_more,
    nothing,
    prepare_search,
    start_search,
    try_scales,
)
from llmkit.quants.quantize.iq_signs import make_signs_even, positive_scale, split_signs
from llmkit.quants.quantize.iq_weights import sum_of_squares, weigh
from llmkit.simd.lanes import scratch
from llmkit.simd.lookup import table_f32
from llmkit.simd.ops import f32_to_f16_bits, load_i32, splat, store_f32, store_u16, zero_bytes

_steps = np.arange(-9, 10, dtype=np.float32) * np.float32(0.1) + np.float32(5)
_FIRST_16, _LAST_3 = table_f32(_steps[:16].tolist()), table_f32(_steps[16:].tolist())
_SMALLEST = np.float32(1e-15)
_part, _scales = scratch(PART_BYTES), scratch(64)


@helper
def _search(part, x, importance, sigma2, table):
    """The scale of 16 values, not negative; 0 where they are nothing. CHOSEN and SIGNS are for the file."""
    weigh(part + WEIGHTS, x, importance, sigma2, 16)
    split_signs(part, x, 16)
    make_signs_even(part, x, 16)
    largest = prepare_search(part, 16)
    if largest < _SMALLEST:
        return nothing(part)
    start_search(part, 2, table, largest / np.float32(5.0), 0)
    try_scales(part, 16, 8, table, _FIRST_16() / splat(largest), 16)
    try_scales(part, 16, 8, table, _LAST_3() / splat(largest), 3)
    if any_off_grid(part, 2):
        fit_once_more(part, 16, 8, table, False)
    return positive_scale(part, 16, 127)


@table_quantizer(IQ2_XS, 8, 3, 2)
def quantize(source, target, n_rows, n_cols, importance, table):
    part, scales = _part(), _scales()
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 74 * block
        weights = importance + 1024 * block % (4 * n_cols)
        sigma2 = sum_of_squares(x, 256) / np.float32(256.0)
        largest = np.float32(0.0)
        for i in range(16):
            scale = _search(part, x + 64 * i, weights + 64 * i, sigma2, table)
            store_f32(scales + 4 * i, scale)
            largest = largest if largest > scale else scale
            for k in range(2):
                signs = load_i32(part + SIGNS + 4 * k)
                store_u16(y + 2 + 4 * i + 2 * k, load_i32(part + CHOSEN + 4 * k) >> 16 | signs << 9)
        if largest == 0:
            zero_bytes(y, 74)
            continue
        d = largest / np.float32(31.0)
        store_u16(y, f32_to_f16_bits(d))
        store_scale_pairs(y + 66, scale_levels(scales, d, 15), 8)
