"""float32 to IQ3_S: for each 32 values one of 16 scales, for each 4 a pattern of 512 and 4 signs.

Source: llama.cpp, ggml-quants (quantize_row_iq3_s_impl).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.iq_grids import IQ3_S
from llmkit.quants.quantize.iq_levels import scale_levels, store_scale_pairs
from llmkit.quants.quantize.iq_neighbours import table_quantizer
from llmkit.quants.quantize.iq_part import (
    CHOSEN,
    PART_BYTES,
    SIGNS,
    WEIGHTS,
    any_off_grid,
    fit_once_more,
    prepare_search,
    start_search,
    try_scales,
)
from llmkit.quants.quantize.iq_signs import positive_scale, split_signs
from llmkit.quants.quantize.iq_weights import sum_of_squares, weigh
from llmkit.simd.lanes import scratch
from llmkit.simd.lookup import table_f32
from llmkit.simd.ops import f32_to_f16_bits, load_i32, splat, store_f32, store_u8, store_u16, zero_bytes

_steps = np.arange(-9, 10, dtype=np.float32) * np.float32(0.2) + np.float32(15)
_FIRST_16, _LAST_3 = table_f32(_steps[:16].tolist()), table_f32(_steps[16:].tolist())
_GROW = np.float32(1.033)
_part, _scales = scratch(PART_BYTES), scratch(64)


@helper
def _search(part, x, importance, sigma2, table):
    """The scale of 32 values, not negative; -1 where all are 0. CHOSEN and SIGNS are for the file."""
    weigh(part + WEIGHTS, x, importance, sigma2, 32)
    split_signs(part, x, 32)
    largest = prepare_search(part, 32)
    if largest == 0:
        return np.float32(-1.0)
    start_search(part, 8, table, largest / np.float32(15.0), 1)
    try_scales(part, 32, 4, table, _FIRST_16() / splat(largest), 16)
    try_scales(part, 32, 4, table, _LAST_3() / splat(largest), 3)
    if any_off_grid(part, 8):
        fit_once_more(part, 32, 4, table, True)
    return positive_scale(part, 32, 255)


@helper
def _store_part(part, y, i, place_of):
    """Part i: the upper bits of its patterns at their place, the rest of them and the signs at place_of."""
    upper = 0
    for k in range(8):
        place = load_i32(part + CHOSEN + 4 * k) >> 16
        store_u8(y + 2 + 8 * place_of + k, place)
        upper |= place >> 8 << k
    store_u8(y + 66 + i, upper)
    for k in range(4):
        store_u8(y + 74 + 4 * place_of + k, load_i32(part + SIGNS + 4 * k))


@table_quantizer(IQ3_S, 4, 8, 3)
def quantize(source, target, n_rows, n_cols, importance, table):
    part, scales = _part(), _scales()
    zero_bytes(scales, 64)
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 110 * block
        weights = importance + 1024 * block % (4 * n_cols) if importance else 0
        zero_bytes(y, 110)
        sigma2 = np.float32(2.0) * sum_of_squares(x, 256) / np.float32(256.0)
        largest, n_stored = np.float32(0.0), 0
        for i in range(8):
            scale = _search(part, x + 128 * i, weights + 128 * i if weights else 0, sigma2, table)
            # For a part of zeros llama.cpp leaves no room: what follows lies a place too low. These are its bytes.
            if scale < 0:
                scale = np.float32(0.0)
            else:
                _store_part(part, y, i, n_stored)
                n_stored += 1
            store_f32(scales + 4 * i, scale)
            largest = largest if largest > scale else scale
        if largest == 0:
            continue
        d = largest / np.float32(31.0)
        store_u16(y, f32_to_f16_bits(d * _GROW))
        store_scale_pairs(y + 106, scale_levels(scales, d, 15), 4)
