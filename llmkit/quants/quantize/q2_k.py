"""float32 to Q2_K: 16 parts of 16 values, scale * q - min, q of 2 bits, scale and min of 4 bits.

Source: llama.cpp, ggml-quants (quantize_row_q2_K_ref, quantize_row_q2_K_impl).
"""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import helper, quantizer
from llmkit.quants.quantize.groups import importance_weights, sum_of_squares, sums_of, to_lanes
from llmkit.quants.quantize.packing import pack_pairs_256
from llmkit.quants.quantize.scale_min_search import FOUND_BYTES, INVERSE, LOW, MINIMUM, SCALE, codes_of, search
from llmkit.quants.quantize.scale_search import search_positive
from llmkit.simd.lanes import absolute, clamp, nearest_int, nearest_int1, scratch, store_low_bytes
from llmkit.simd.ops import (
    f16_bits_to_f32,
    f32_to_f16_bits,
    load_f32,
    load_i32,
    load_u8,
    load_u16,
    splat,
    store_f32,
    store_u8,
    store_u16,
    vload,
    vstore,
    zero_bytes,
)

_lanes, _weights, _flat_weights, _codes = scratch(1024), scratch(1024), scratch(1024), scratch(256)
_found, _sums = scratch(FOUND_BYTES), scratch(64)
_table, _table_weights, _table_codes, _table_steps = scratch(1024), scratch(1024), scratch(1024), scratch(64)


@helper
def _search(x, importance, found, sums):
    lanes, weights = _lanes(), _weights()
    to_lanes(x, 16, lanes)
    if importance == 0:
        for i in range(16):
            vstore(weights + 64 * i, absolute(vload(lanes + 64 * i)))
        search(lanes, weights, 16, 3, float32(-0.5), float32(0.1), 15, True, found)
        return
    flat = _flat_weights()
    importance_weights(x, sum_of_squares(x, 256) / float32(256.0), importance, 256, flat)
    to_lanes(flat, 16, weights)
    sums_of(weights, 16, sums)
    search(lanes, weights, 16, 3, float32(-0.9), float32(0.05), 36, False, found)


@helper
def _largest(values):
    largest = float32(0.0)
    for j in range(16):
        largest = max(largest, load_f32(values + 4 * j))
    return largest


@helper
def _store_levels(found, y):
    """Scales and minima as 0..15 of the largest."""
    top_scale, top_min = _largest(found + SCALE), _largest(found + MINIMUM)
    by_scale = float32(15.0) / top_scale if top_scale > 0.0 else float32(0.0)
    by_min = float32(15.0) / top_min if top_min > 0.0 else float32(0.0)
    for j in range(16):
        scale = nearest_int1(by_scale * load_f32(found + SCALE + 4 * j))
        store_u8(y + j, scale | nearest_int1(by_min * load_f32(found + MINIMUM + 4 * j)) << 4)
    store_u16(y + 80, f32_to_f16_bits(top_scale / float32(15.0)))
    store_u16(y + 82, f32_to_f16_bits(top_min / float32(15.0)))


@helper
def _store_levels_by_importance(found, sums, y):
    """Scales are searched in lane 0, minima in lane 1."""
    table, weights, codes, steps = _table(), _table_weights(), _table_codes(), _table_steps()
    zero_bytes(table, 1024)
    zero_bytes(weights, 1024)
    for j in range(16):
        store_f32(table + 64 * j, load_f32(found + SCALE + 4 * j))
        store_f32(table + 64 * j + 4, load_f32(found + MINIMUM + 4 * j))
        store_f32(weights + 64 * j, load_f32(sums + 4 * j))
        store_f32(weights + 64 * j + 4, load_f32(sums + 4 * j))
    search_positive(table, weights, 16, 15, steps, codes)
    for j in range(16):
        store_u8(y + j, load_i32(codes + 64 * j) | load_i32(codes + 64 * j + 4) << 4)
    store_u16(y + 80, f32_to_f16_bits(load_f32(steps)))
    store_u16(y + 82, f32_to_f16_bits(load_f32(steps + 4)))


@helper
def _codes_of_part(x, d, d_min, found, codes):
    v = vload(x)
    if d != 0.0:
        q = clamp(nearest_int((v + splat(d_min)) / splat(d)), 0, 3)
    else:
        q = codes_of(splat(load_f32(found + INVERSE)) * (v - splat(load_f32(found + LOW))), 3)
    store_low_bytes(codes, q)


@quantizer
def quantize(source, target, n_rows, n_cols, importance):
    found, sums, codes = _found(), _sums(), _codes()
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 84 * block
        weights = importance + 4 * (256 * block % n_cols) if importance != 0 else 0
        _search(x, weights, found, sums)
        if importance == 0:
            _store_levels(found, y)
        else:
            _store_levels_by_importance(found, sums, y)
        step, step_min = f16_bits_to_f32(load_u16(y + 80)), f16_bits_to_f32(load_u16(y + 82))
        for part in range(16):
            levels = load_u8(y + part)
            d, d_min = step * float32(levels & 15), step_min * float32(levels >> 4)
            _codes_of_part(x + 64 * part, d, d_min, found + 4 * part, codes + 16 * part)
        pack_pairs_256(codes, y + 16)
