"""What Q4_K and Q5_K share: a super-block is 8 parts of 32 values, scale * q - min, scale and min of 6 bits.

Two super-blocks are 16 lanes. Source: llama.cpp, ggml-quants (quantize_row_q4_K_ref, _impl; the same of q5_K).
"""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import helper
from llmkit.quants.k_scales import min_at, scale_at
from llmkit.quants.quantize.groups import (
    importance_weights,
    magnitude_weights,
    sum_of_squares,
    sums_of,
    to_lanes,
)
from llmkit.quants.quantize.scale_min_search import FOUND_BYTES, INVERSE, LOW, MINIMUM, SCALE, codes_of, search
from llmkit.quants.quantize.scale_search import search_positive
from llmkit.simd.lanes import clamp, nearest_int, nearest_int1, scratch, store_low_bytes
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
    zero_bytes,
)

HEAD_BYTES = 16  # of a super-block in the file: d, dmin (f16), 12 bytes of scales and minima
_lanes, _weights, _flat_weights = scratch(2048), scratch(2048), scratch(2048)
_found, _sums, _levels = scratch(FOUND_BYTES), scratch(64), scratch(32)
_table, _table_weights, _table_codes, _table_scales = scratch(512), scratch(512), scratch(512), scratch(64)


@helper
def _search(x, importance, n_max, found, sums):
    """Scale and minimum of 16 parts at x; sums: those of the parts' weights, with importance."""
    lanes, weights = _lanes(), _weights()
    to_lanes(x, 32, lanes)
    if importance == 0:
        magnitude_weights(lanes, 32, weights)
        r_min, n_step = (float32(-1.0), 20) if n_max == 15 else (float32(-0.5), 15)
        search(lanes, weights, 32, n_max, r_min, float32(0.1), n_step, False, found)
        return
    flat = _flat_weights()
    for k in range(2):
        sigma2 = float32(2.0) * sum_of_squares(x + 1024 * k, 256) / float32(256.0)
        importance_weights(x + 1024 * k, sigma2, importance + 1024 * k, 256, flat + 1024 * k)
    to_lanes(flat, 32, weights)
    sums_of(weights, 32, sums)
    search(lanes, weights, 32, n_max, float32(-0.9), float32(0.05), 36, False, found)


@helper
def _levels_of(values, levels):
    """8 scales (or minima) as 0..63 of their largest, bytes at `levels`; the step."""
    largest = float32(0.0)
    for j in range(8):
        largest = max(largest, load_f32(values + 4 * j))
    inverse = float32(63.0) / largest if largest > 0.0 else float32(0.0)
    for j in range(8):
        store_u8(levels + j, min(63, nearest_int1(inverse * load_f32(values + 4 * j)) & 255))
    return largest / float32(63.0)


@helper
def _store_head(head, d, d_min, levels):
    """levels: bytes of 8 scales, then of 8 minima."""
    store_u16(head, f32_to_f16_bits(d))
    store_u16(head + 2, f32_to_f16_bits(d_min))
    for j in range(4):
        scale, minimum = load_u8(levels + j), load_u8(levels + 8 + j)
        high_scale, high_minimum = load_u8(levels + 4 + j), load_u8(levels + 12 + j)
        store_u8(head + 4 + j, scale | (high_scale >> 4) << 6)
        store_u8(head + 8 + j, minimum | (high_minimum >> 4) << 6)
        store_u8(head + 12 + j, (high_scale & 15) | (high_minimum & 15) << 4)


@helper
def _heads(found, levels, heads):
    """Without importance: levels of the largest scale and minimum."""
    for k in range(2):
        d = _levels_of(found + SCALE + 32 * k, levels + 16 * k)
        d_min = _levels_of(found + MINIMUM + 32 * k, levels + 16 * k + 8)
        _store_head(heads + HEAD_BYTES * k, d, d_min, levels + 16 * k)


@helper
def _heads_by_importance(found, sums, limit, levels, heads):
    """The steps of the scales and of the minima of both super-blocks are searched as four lanes.

    limit: of a level; only Q5_K has one, so that in Q4_K a level above 63 spills into another's bits.
    """
    table, weights, codes, steps = _table(), _table_weights(), _table_codes(), _table_scales()
    zero_bytes(table, 512)
    zero_bytes(weights, 512)
    for lane in range(4):
        k, values = lane & 1, found + (SCALE if lane < 2 else MINIMUM)
        for j in range(8):
            store_f32(table + 64 * j + 4 * lane, load_f32(values + 32 * k + 4 * j))
            store_f32(weights + 64 * j + 4 * lane, load_f32(sums + 32 * k + 4 * j))
    search_positive(table, weights, 8, 63, steps, codes)
    for k in range(2):
        for j in range(8):
            store_u8(levels + 16 * k + j, min(limit, load_i32(codes + 64 * j + 4 * k)))
            store_u8(levels + 16 * k + 8 + j, min(limit, load_i32(codes + 64 * j + 4 * (k + 2))))
        _store_head(heads + HEAD_BYTES * k, load_f32(steps + 4 * k), load_f32(steps + 4 * (k + 2)), levels + 16 * k)


@helper
def _codes(x, d, d_min, n_max, found, codes):
    """32 codes for the scale and minimum that the head now holds; those of the search where the scale became 0."""
    for i in range(2):
        v = vload(x + 64 * i)
        if d != 0.0:
            q = clamp(nearest_int((v + splat(d_min)) / splat(d)), 0, n_max)
        else:
            q = codes_of(splat(load_f32(found + INVERSE)) * (v - splat(load_f32(found + LOW))), n_max)
        store_low_bytes(codes + 16 * i, q)


@helper
def encode_two(x, importance, n_max, heads, codes):
    """Two super-blocks of float32 at x: their heads, and 512 codes 0..n_max (15 or 31), bytes.

    importance: address of 512 float32, or 0.
    """
    found, sums, levels = _found(), _sums(), _levels()
    _search(x, importance, n_max, found, sums)
    if importance == 0:
        _heads(found, levels, heads)
    else:
        _heads_by_importance(found, sums, 63 if n_max == 31 else 255, levels, heads)
    for part in range(16):
        head, j = heads + HEAD_BYTES * (part >> 3), part & 7
        d = f16_bits_to_f32(load_u16(head)) * float32(scale_at(head + 4, j))
        d_min = f16_bits_to_f32(load_u16(head + 2)) * float32(min_at(head + 4, j))
        _codes(x + 128 * part, d, d_min, n_max, found + 4 * part, codes + 32 * part)
