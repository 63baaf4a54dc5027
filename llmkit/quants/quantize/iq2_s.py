"""float32 to IQ2_S: for each 16 values one of 16 scales, for each 8 a pattern of 1024 and 8 signs.

Source: llama.cpp, ggml-quants (quantize_row_iq2_s_impl).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.iq_grids import IQ2_S
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
from llmkit.quants.quantize.iq_signs import positive_scale, split_signs
from llmkit.quants.quantize.iq_weights import sum_of_squares, weigh
from llmkit.simd.lanes import scratch
from llmkit.simd.lookup import table_f32
from llmkit.simd.ops import (
    f32_to_f16_bits,
    load_i32,
    load_u8,
    splat,
    store_f32,
    store_u8,
    store_u16,
    vload,
    vstore,
    zero_bytes,
)

_steps = np.arange(-9, 10, dtype=np.float32) * np.float32(0.1) + np.float32(5)
_FIRST_16, _LAST_3 = table_f32(_steps[:16].tolist()), table_f32(_steps[16:].tolist())
_SMALLEST, _QUARTER, _SHRINK = np.float32(1e-8), np.float32(0.25), np.float32(0.9875)
_part, _scales = scratch(PART_BYTES), scratch(64)


@helper
def _search(part, x, importance, sigma2, table):
    """The scale of 16 values, not negative; 0 where they are nothing. CHOSEN and SIGNS are for the file."""
    weigh(part + WEIGHTS, x, importance, sigma2, 16)
    if not importance:
        vstore(part + WEIGHTS, splat(_QUARTER * sigma2) + vload(part + WEIGHTS))
    split_signs(part, x, 16)
    largest = prepare_search(part, 16)
    if largest < _SMALLEST:
        return nothing(part)
    start_search(part, 2, table, largest / np.float32(5.0), 0)
    try_scales(part, 16, 8, table, _FIRST_16() / splat(largest), 16)
    try_scales(part, 16, 8, table, _LAST_3() / splat(largest), 3)
    if any_off_grid(part, 2):
        fit_once_more(part, 16, 8, table, False)
    return positive_scale(part, 16, 255)


@table_quantizer(IQ2_S, 8, 3, 1)
def quantize(source, target, n_rows, n_cols, importance, table):
    part, scales = _part(), _scales()
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 82 * block
        weights = importance + 1024 * block % (4 * n_cols) if importance else 0
        zero_bytes(y, 82)
        sigma2 = np.float32(2.0) * sum_of_squares(x, 256) / np.float32(256.0)
        largest = np.float32(0.0)
        for i in range(16):
            scale = _search(part, x + 64 * i, weights + 64 * i if weights else 0, sigma2, table)
            store_f32(scales + 4 * i, scale)
            largest = largest if largest > scale else scale
            for k in range(2):
                place, at = load_i32(part + CHOSEN + 4 * k) >> 16, 2 * i + k
                store_u8(y + 2 + at, place)
                store_u8(y + 34 + at, load_i32(part + SIGNS + 4 * k))
                upper = y + 66 + at // 4
                store_u8(upper, load_u8(upper) | place >> 8 << 2 * (at & 3))
        if largest == 0:
            continue
        d = largest / np.float32(31.0)
        store_u16(y, f32_to_f16_bits(d * _SHRINK))
        store_scale_pairs(y + 74, scale_levels(scales, d, 15), 8)
