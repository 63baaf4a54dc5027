"""float32 to IQ1_M: for each 16 values one of 8 scales, for each 8 a pattern of 2048 and a shift.

Source: llama.cpp, ggml-quants (quantize_row_iq1_m_impl).
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
from llmkit.simd.lanes import scratch, splat_i32, where
from llmkit.simd.lookup import lane_i32, table_f32, table_i32
from llmkit.simd.ops import (
    f32_to_f16_bits,
    load_f32,
    load_i32,
    load_u8,
    load_u16,
    splat,
    store_f32,
    store_i32,
    store_u8,
    store_u16,
    vload,
    vload_splat,
    vstore,
    zero_bytes,
)

_SMALLEST, _GROW = np.float32(1e-7), np.float32(1.1125)
# Lanes: four places, and for each the shifts of the first and the second 8 values: up up, up down, down up, down down.
_OFFSET = table_i32([0] * 4 + [1] * 4 + [2] * 4 + [3] * 4)
_FIRST_LOW, _FIRST_MIDDLE, _FIRST_HIGH = (table_f32([u, u, d, d]) for u, d in zip(UP, DOWN, strict=True))
_SECOND_LOW, _SECOND_MIDDLE, _SECOND_HIGH = (table_f32([u, d, u, d]) for u, d in zip(UP, DOWN, strict=True))
_part, _scales, _terms = scratch(IQ1_BYTES), scratch(64), scratch(16 * 384)
_shifts, _entries = scratch(64), scratch(128)


@helper
def _terms_of_places(part, x, terms):
    """For each place of ORDER w q x and w q^2 with the three levels: 6 vectors."""
    for j in range(16):
        place = load_i32(part + ORDER + 4 * j)
        weight, value = vload_splat(part + WEIGHTS + 4 * place), vload_splat(x + 4 * place)
        is_first = place < 8
        low = _FIRST_LOW() if is_first else _SECOND_LOW()
        middle = _FIRST_MIDDLE() if is_first else _SECOND_MIDDLE()
        high = _FIRST_HIGH() if is_first else _SECOND_HIGH()
        at = terms + 384 * j
        vstore(at, weight * low * value)
        vstore(at + 64, weight * low * low)
        vstore(at + 128, weight * middle * value)
        vstore(at + 192, weight * middle * middle)
        vstore(at + 256, weight * high * value)
        vstore(at + 320, weight * high * high)


@helper
def _find_split(part, terms):
    """The best of all 17 * 18 / 2 pairs of places and four shifts; every sum runs through the places in order."""
    start_qx, start_q2 = splat(0.0), splat(0.0)
    for i in range(17):
        for j in range(i, 17, 4):
            qx, q2, second = start_qx, start_q2, splat_i32(j) + _OFFSET()
            for k in range(i, 16):
                at, is_middle = terms + 384 * k, splat_i32(k) < second
                qx = qx + where(is_middle, vload(at + 128), vload(at + 256))
                q2 = q2 + where(is_middle, vload(at + 192), vload(at + 320))
            keep_best_split(part, qx, q2, i, j, min(4, 17 - j), 4)
        if i < 16:
            start_qx = start_qx + vload(terms + 384 * i)
            start_q2 = start_q2 + vload(terms + 384 * i + 64)


@helper
def _goes_up(shift, k):
    """Whether pattern k, 0 or 1, is shifted up."""
    return shift & 2 >> k == 0


@helper
def _search(part, x, table, terms):
    """Of 16 values, from WEIGHTS: the scale, not negative, and the shift, 0..3. ENTRIES are the patterns."""
    store_i32(part + ENTRIES, 0)
    store_i32(part + ENTRIES + 4, 0)
    if largest_magnitude(x, 16) < _SMALLEST:
        return np.float32(0.0), 0
    sort_places(part, x, 16)
    _terms_of_places(part, x, terms)
    no_split(part)
    _find_split(part, terms)
    if load_i32(part + FIRST) < 0:
        return np.float32(0.0), 0
    scale, shift = load_f32(part + SCALE), load_i32(part + SHIFT)
    is_reversed = scale < 0
    levels_of_split(part, 16, is_reversed)
    if is_reversed:
        scale, shift = -scale, 3 - shift
    for k in range(2):
        find_pattern(part, k, x, scale, _goes_up(shift, k), table)
    if load_i32(part + OFF_GRID) or load_i32(part + OFF_GRID + 4):
        qx, q2 = np.float32(0.0), np.float32(0.0)
        for k in range(2):
            qx, q2 = add_fit(part, k, x, _goes_up(shift, k), np.float32(1.0), qx, q2)
        if qx > 0 and q2 > 0:
            scale = qx / q2
    return scale, shift


@helper
def _store_patterns(part, y, i):
    first, second = load_i32(part + ENTRIES) >> 16 & 0xFFFF, load_i32(part + ENTRIES + 4) >> 16 & 0xFFFF
    store_u8(y + 2 * i, first)
    store_u8(y + 2 * i + 1, second)
    store_u8(y + 32 + i, first >> 8 | second >> 8 << 4)


@helper
def _store_scale(y, i, level, shift):
    """3 bits of the level; a bit for each pattern that is shifted down."""
    at, upper = y + 48 + i // 4 * 2, y + 32 + i
    store_u16(at, load_u16(at) | level << 3 * (i % 4))
    store_u8(upper, load_u8(upper) | (shift & 2) << 2 | (shift & 1) << 7)


@table_quantizer(IQ1, 8, 3, 3)
def quantize(source, target, n_rows, n_cols, importance, table):
    part, scales, terms, shifts, entries = _part(), _scales(), _terms(), _shifts(), _entries()
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 56 * block
        weights = importance + 1024 * block % (4 * n_cols) if importance else 0
        zero_bytes(y, 56)
        sigma2 = np.float32(2.0) * sum_of_squares(x, 256) / np.float32(256.0)
        largest = np.float32(0.0)
        for i in range(16):
            weigh(part + WEIGHTS, x + 64 * i, weights + 64 * i if weights else 0, sigma2, 16)
            scale, shift = _search(part, x + 64 * i, table, terms)
            store_f32(scales + 4 * i, scale)
            store_i32(shifts + 4 * i, shift)
            largest = largest if largest > scale else scale
            _store_patterns(part, y, i)
            for k in (0, 4):
                store_i32(entries + 8 * i + k, load_i32(part + ENTRIES + k))
        if largest == 0:
            continue
        d = largest / np.float32(15.0)
        levels = scale_levels(scales, d, 7)
        qx, q2 = np.float32(0.0), np.float32(0.0)
        for i in range(16):
            level, shift = lane_i32(levels, i), load_i32(shifts + 4 * i)
            _store_scale(y, i, level, shift)
            weigh(part + WEIGHTS, x + 64 * i, weights + 64 * i if weights else 0, sigma2, 16)
            for k in range(2):
                store_i32(part + ENTRIES + 4 * k, load_i32(entries + 8 * i + 4 * k))
                qx, q2 = add_fit(part, k, x + 64 * i, _goes_up(shift, k), np.float32(2 * level + 1), qx, q2)
        if q2 > 0:
            d = qx / q2
        bits = f32_to_f16_bits(d * _GROW)
        for i in range(4):
            store_u16(y + 48 + 2 * i, load_u16(y + 48 + 2 * i) | (bits >> 4 * i & 15) << 12)
