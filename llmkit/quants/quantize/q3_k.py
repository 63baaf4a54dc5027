"""float32 to Q3_K: 16 parts of 16 values, d * scale * q, scale from -32 to 31, q from -4 to 3.

Without importance the codes of a part are moved one by one, as make_q3_quants does.
Source: llama.cpp, ggml-quants (quantize_row_q3_K_ref, quantize_row_q3_K_impl).
"""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import helper, quantizer
from llmkit.quants.quantize.groups import importance_weights, sum_of_squares, sums_of, to_lanes
from llmkit.quants.quantize.packing import pack_bits_256, pack_pairs_256
from llmkit.quants.quantize.scale_search import (
    FOUND_BYTES,
    INVERSE,
    OFFSET,
    SCALE,
    SMALLEST,
    found_codes,
    largest_scale,
    search_signed,
    signed_codes,
    signed_largest,
)
from llmkit.simd.lanes import (
    absolute,
    any_lane,
    clamp,
    nearest_int,
    nearest_int1,
    scratch,
    splat_i32,
    store_low_bytes,
    to_f32,
    vload_i32,
    vstore_i32,
    where,
)
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
_found, _sums, _levels, _lane_codes = scratch(FOUND_BYTES), scratch(64), scratch(16), scratch(1024)
_table, _table_weights, _table_found = scratch(1024), scratch(1024), scratch(FOUND_BYTES)


@helper
def _move_codes(x, codes, sum_xl, sum_l2):
    """Five times over all codes at most, each to where the fit is best; the sums that are left. Weights are x^2."""
    zero = splat(0.0)
    for _ in range(5):
        changed = zero > zero
        for i in range(16):
            v, code = vload(x + 64 * i), vload_i32(codes + 64 * i)
            weight, old = v * v, to_f32(code)
            xl, l2 = sum_xl - weight * v * old, sum_l2 - weight * old * old
            moved = clamp(nearest_int(v * l2 / xl), -4, 3)
            possible, new = (xl > zero) & (moved != code), to_f32(moved)
            xl += weight * v * new
            l2 += weight * new * new
            better = possible & (l2 > zero) & (xl * xl * sum_l2 > sum_xl * sum_xl * l2)
            vstore_i32(codes + 64 * i, where(better, moved, code))
            sum_xl, sum_l2 = where(better, xl, sum_xl), where(better, l2, sum_l2)
            changed = changed | better
        if not any_lane(changed):
            break
    return where(sum_l2 > zero, sum_xl / sum_l2, zero)


@helper
def _search(x, found, codes):
    """make_q3_quants of 16 parts in lanes: scales into found, q + 4 (0 where a part is empty) into codes [16][16]."""
    lanes, zero = _lanes(), splat(0.0)
    to_lanes(x, 16, lanes)
    largest = signed_largest(lanes, 16)
    empty, inverse = absolute(largest) < splat(SMALLEST), splat(-4.0) / largest
    sum_xl, sum_l2 = zero, zero
    for i in range(16):
        v = vload(lanes + 64 * i)
        code = clamp(nearest_int(inverse * v), -4, 3)
        vstore_i32(codes + 64 * i, code)
        sum_xl += v * v * v * to_f32(code)
        sum_l2 += v * v * to_f32(code) * to_f32(code)
    scale = _move_codes(lanes, codes, sum_xl, sum_l2)
    vstore(found + SCALE, where(empty, zero, scale))
    for i in range(16):
        vstore_i32(codes + 64 * i, where(empty, splat_i32(0), vload_i32(codes + 64 * i) + splat_i32(4)))


@helper
def _levels_of_largest(found, levels):
    """16 scales as 0..63, 32 more than their part of the largest; the step."""
    top = largest_scale(found + SCALE)
    if top == 0.0:
        zero_bytes(levels, 16)
        return float32(0.0)
    inverse = float32(-32.0) / top
    for j in range(16):
        level = nearest_int1(inverse * load_f32(found + SCALE + 4 * j))
        store_u8(levels + j, max(-32, min(31, level)) + 32)
    return float32(1.0) / inverse


@helper
def _search_by_importance(x, importance, found, levels):
    """Parts in lanes, then their scales in lane 0; the step."""
    lanes, weights, flat, sums = _lanes(), _weights(), _flat_weights(), _sums()
    to_lanes(x, 16, lanes)
    importance_weights(x, float32(2.0) * sum_of_squares(x, 256) / float32(256.0), importance, 256, flat)
    to_lanes(flat, 16, weights)
    sums_of(weights, 16, sums)
    search_signed(lanes, weights, 16, 4, found)
    table, table_weights, table_found = _table(), _table_weights(), _table_found()
    zero_bytes(table, 1024)
    zero_bytes(table_weights, 1024)
    for j in range(16):
        store_f32(table + 64 * j, load_f32(found + SCALE + 4 * j))
        store_f32(table_weights + 64 * j, load_f32(sums + 4 * j))
    search_signed(table, table_weights, 16, 32, table_found)
    inverse, offset = load_f32(table_found + INVERSE), load_i32(table_found + OFFSET)
    store_low_bytes(levels, found_codes(vload(found + SCALE), inverse, offset, 32))
    return load_f32(table_found + SCALE)


@helper
def _store_levels(levels, y):
    """Lower halves of 0..7 and 8..15 in 8 bytes, then upper pairs in 4."""
    for j in range(8):
        store_u8(y + j, (load_u8(levels + j) & 15) | (load_u8(levels + 8 + j) & 15) << 4)
    for j in range(4):
        packed = 0
        for k in range(4):
            packed |= (load_u8(levels + 4 * k + j) >> 4) << 2 * k
        store_u8(y + 8 + j, packed)


@quantizer
def quantize(source, target, n_rows, n_cols, importance):
    found, levels, codes, lane_codes = _found(), _levels(), _codes(), _lane_codes()
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 110 * block
        if importance == 0:
            _search(x, found, lane_codes)
            step = _levels_of_largest(found, levels)
        else:
            step = _search_by_importance(x, importance + 4 * (256 * block % n_cols), found, levels)
        _store_levels(levels, y + 96)
        store_u16(y + 108, f32_to_f16_bits(step))
        step = f16_bits_to_f32(load_u16(y + 108))
        for part in range(16):
            d = step * float32(load_u8(levels + part) - 32)
            signed_codes(x + 64 * part, d, 4, found + 4 * part, codes + 16 * part)
            if importance == 0 and d == 0.0:
                for i in range(16):
                    store_u8(codes + 16 * part + i, load_i32(lane_codes + 64 * i + 4 * part))
        pack_bits_256(codes, 2, y)
        pack_pairs_256(codes, y + 32)
