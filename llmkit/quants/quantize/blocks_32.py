"""What Q4_0, Q4_1, Q5_0 and Q5_1 share: batches of 16 blocks of 32 values, a step (and a minimum) for each block.

Without importance the largest value decides; with it, the searches of the K types do.
Source: llama.cpp, ggml-quants (quantize_row_q4_0_ref, quantize_row_q4_0_impl, and so on).
"""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import helper
from llmkit.quants.quantize import scale_min_search as with_min
from llmkit.quants.quantize import scale_search as signed
from llmkit.quants.quantize.groups import importance_weights, sum_of_squares, to_lanes
from llmkit.simd.lanes import (
    at_most,
    larger,
    load_bytes,
    mask_bits,
    scratch,
    smaller,
    splat_i32,
    store_low_bytes,
    truncate,
    where,
)
from llmkit.simd.ops import (
    load_f32,
    load_i32,
    load_i64,
    splat,
    store_f32,
    store_i64,
    vload,
    vstore,
    vstore_f16,
    zero_bytes,
)

BATCH = 16  # blocks
_lanes, _weights, _flat_weights = scratch(2048), scratch(2048), scratch(2048)
_found_signed, _found_min = scratch(signed.FOUND_BYTES), scratch(with_min.FOUND_BYTES)
_steps, _low = scratch(64), scratch(64)
_LOW = 0x0F0F0F0F0F0F0F0F
_LARGEST = 3.4028234663852886e38


@helper
def batch_weights(x, source, first, n, n_cols, importance, sigma_at, weights):
    """Weights of n blocks at x, number `first` of the rows and on, as lanes; sigma_at keeps a row's mean square."""
    flat = _flat_weights()
    zero_bytes(flat, 2048)
    for k in range(n):
        value = 32 * (first + k)
        col = value % n_cols
        if col == 0:
            store_f32(sigma_at, sum_of_squares(source + 4 * value, n_cols) / float32(n_cols))
        importance_weights(x + 128 * k, load_f32(sigma_at), importance + 4 * col, 32, flat + 128 * k)
    to_lanes(flat, 32, weights)


@helper
def _inverse(d):
    return where(d != splat(0.0), splat(1.0) / d, splat(0.0))


@helper
def encode_signed(x, weights, n_max, d_at, codes):
    """d * (q - n_max): 512 values at x to 16 d (f16) and 512 codes, bytes. weights: lanes, or 0."""
    lanes, found, steps = _lanes(), _found_signed(), _steps()
    to_lanes(x, 32, lanes)
    if weights == 0:
        d = signed.signed_largest(lanes, 32) / splat(-n_max)
        vstore(steps, _inverse(d))
        vstore_f16(d_at, d)
        half = splat(float32(n_max) + float32(0.5))
        for i in range(32):
            v = vload(x + 64 * i) * splat(load_f32(steps + 4 * (i >> 1)))
            store_low_bytes(codes + 16 * i, at_most(truncate(v + half), 2 * n_max - 1))
        return
    signed.search_signed(lanes, weights, 32, n_max, found)
    vstore_f16(d_at, vload(found + signed.SCALE))
    for i in range(32):
        at = found + 4 * (i >> 1)
        inverse, offset = load_f32(at + signed.INVERSE), load_i32(at + signed.OFFSET)
        store_low_bytes(codes + 16 * i, signed.found_codes(vload(x + 64 * i), inverse, offset, n_max))


@helper
def encode_with_min(x, weights, n_max, d_at, min_at, codes):
    """d * q + min: 512 values at x to 16 d, 16 min (f16) and 512 codes, bytes. weights: lanes, or 0."""
    lanes, found, steps, lows = _lanes(), _found_min(), _steps(), _low()
    to_lanes(x, 32, lanes)
    if weights == 0:
        low, high = splat(_LARGEST), splat(-_LARGEST)
        for i in range(32):
            low, high = smaller(vload(lanes + 64 * i), low), larger(vload(lanes + 64 * i), high)
        d = (high - low) / splat(n_max)
        vstore(steps, _inverse(d))
        vstore(lows, low)
        vstore_f16(d_at, d)
        vstore_f16(min_at, low)
        for i in range(32):
            at = 4 * (i >> 1)
            v = (vload(x + 64 * i) - splat(load_f32(lows + at))) * splat(load_f32(steps + at))
            store_low_bytes(codes + 16 * i, at_most(truncate(v + splat(0.5)), n_max))
        return
    with_min.search(lanes, weights, 32, n_max, float32(-0.9), float32(0.05), 36, False, found)
    vstore_f16(d_at, vload(found + with_min.SCALE))
    vstore_f16(min_at, -vload(found + with_min.MINIMUM))
    for i in range(32):
        at = found + 4 * (i >> 1)
        v = splat(load_f32(at + with_min.INVERSE)) * (vload(x + 64 * i) - splat(load_f32(at + with_min.LOW)))
        store_low_bytes(codes + 16 * i, with_min.codes_of(v, n_max))


@helper
def pack_nibbles(codes, target):
    """The low four bits of 32 codes: byte i has values i and i + 16."""
    for i in range(0, 16, 8):
        store_i64(target + i, (load_i64(codes + i) & _LOW) | (load_i64(codes + 16 + i) & _LOW) << 4)


@helper
def fifth_bits(codes):
    """Bit 4 of 32 codes below 32: bit i of the result is that of value i."""
    low, high = load_bytes(codes) > splat_i32(15), load_bytes(codes + 16) > splat_i32(15)
    return mask_bits(low) | mask_bits(high) << 16
