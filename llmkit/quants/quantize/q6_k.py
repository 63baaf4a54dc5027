"""float32 to Q6_K: 16 parts of 16 values, d * scale * q, scale an int8, q from -32 to 31.

Source: llama.cpp, ggml-quants (quantize_row_q6_K_ref, quantize_row_q6_K_impl).
"""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import helper, quantizer
from llmkit.quants.quantize.groups import to_lanes
from llmkit.quants.quantize.scale_search import (
    FOUND_BYTES,
    SCALE,
    SMALLEST,
    largest_scale,
    search_signed,
    signed_codes,
    square_weights,
)
from llmkit.simd.lanes import nearest_int1, scratch
from llmkit.simd.ops import (
    f16_bits_to_f32,
    f32_to_f16_bits,
    load_f32,
    load_i8,
    load_i64,
    load_u16,
    store_i64,
    store_u8,
    store_u16,
    zero_bytes,
)

_lanes, _weights, _codes, _found = scratch(1024), scratch(1024), scratch(256), scratch(FOUND_BYTES)
_LOW, _PAIR = 0x0F0F0F0F0F0F0F0F, 0x0303030303030303


@helper
def _search(x, importance, found):
    lanes, weights = _lanes(), _weights()
    to_lanes(x, 16, lanes)
    if importance == 0:
        square_weights(lanes, 16, weights)
    else:
        to_lanes(importance, 16, weights)
    search_signed(lanes, weights, 16, 32, found)


@helper
def _pack(codes, y):
    for half in range(2):
        q, low, high = codes + 128 * half, y + 64 * half, y + 128 + 32 * half
        for i in range(0, 32, 8):
            a, b, c, d = load_i64(q + i), load_i64(q + 32 + i), load_i64(q + 64 + i), load_i64(q + 96 + i)
            store_i64(low + i, (a & _LOW) | (c & _LOW) << 4)
            store_i64(low + 32 + i, (b & _LOW) | (d & _LOW) << 4)
            upper = ((a >> 4) & _PAIR) | ((b >> 4) & _PAIR) << 2 | ((c >> 4) & _PAIR) << 4 | ((d >> 4) & _PAIR) << 6
            store_i64(high + i, upper)


@quantizer
def quantize(source, target, n_rows, n_cols, importance):
    found, codes = _found(), _codes()
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 210 * block
        _search(x, importance + 4 * (256 * block % n_cols) if importance != 0 else 0, found)
        top = largest_scale(found + SCALE)
        if abs(top) < float32(SMALLEST):
            zero_bytes(y, 210)
            continue
        inverse = float32(-128.0) / top
        store_u16(y + 208, f32_to_f16_bits(float32(1.0) / inverse))
        step = f16_bits_to_f32(load_u16(y + 208))
        for part in range(16):
            store_u8(y + 192 + part, min(127, nearest_int1(inverse * load_f32(found + SCALE + 4 * part))))
            d = step * float32(load_i8(y + 192 + part))
            signed_codes(x + 64 * part, d, 32, found + 4 * part, codes + 16 * part)
        _pack(codes, y)
