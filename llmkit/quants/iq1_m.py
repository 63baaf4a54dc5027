"""IQ1_M: 256 values d * (2 s + 1) * (g + delta), g of -1, 0, 1; 8 values are one of 2048 patterns.

s (3 bits) is of 16 values, the sign of delta (1/8) of 8. In the file: lower 8 bits of the 32 patterns; 16 bytes with,
in each half, the upper 3 bits and the sign; 4 times 4 s and 4 bits of d (u16).
Source: llama.cpp, ggml-quants (block_iq1_m).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.iq_grids import IQ1
from llmkit.quants.planes import codes_buffer, pack_2, spread_pairs
from llmkit.quants.scaled_formats import Iq1MFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_i64, load_u8, load_u16, store_f32, store_i64, store_u8, store_u16

FORMAT = Iq1MFormat()
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _d_bits(source):
    bits = 0
    for i in range(4):
        bits |= (load_u16(source + 48 + 2 * i) >> 12) << 4 * i
    return bits


@helper
def _scale_at(source, k):
    """s of 16 values, k = 0..15."""
    return (load_u16(source + 48 + 2 * (k >> 2)) >> 3 * (k & 3)) & 7


@helper
def _upper_at(source, k):
    """Of 8 values, k = 0..31: the upper bits of the pattern, and 8 where delta is negative."""
    return (load_u8(source + 32 + (k >> 1)) >> 4 * (k & 1)) & 15


@helper
def _read_codes(source, codes):
    """g + 1 of all values."""
    for k in range(32):
        store_i64(codes + 8 * k, spread_pairs(IQ1[load_u8(source + k) | (_upper_at(source, k) & 7) << 8]))


@block
def pack(source, target, row):
    codes, after = codes_buffer(), target + 1024
    _read_codes(source, codes)
    masks = after + 160
    for k in range(32):
        negative = _upper_at(source, k) >> 3
        before = load_u16(masks + 2 * k) & ~(1 << row)
        store_u16(masks + 2 * k, before | negative << row)
        # 16 + 8 g + 1 is 8 (g + 2) + 1, and 16 + 8 g - 1 is 8 (g + 1) + 7: where delta is positive all codes grow by 1.
        store_i64(codes + 8 * k, load_i64(codes + 8 * k) + (1 - negative) * 0x0101010101010101)
    for part in range(8):
        pack_2(codes + 32 * part, target + 128 * part, row)
        store_u8(after + 16 * part + row, _scale_at(source, 2 * part) | _scale_at(source, 2 * part + 1) << 4)
    store_u16(after + 128 + 2 * row, _d_bits(source))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(_d_bits(source))
    _read_codes(source, codes)
    for i in range(256):
        delta = -0.125 if _upper_at(source, i >> 3) & 8 else 0.125
        scale = d * (2 * _scale_at(source, i >> 4) + 1)
        store_f32(target + 4 * i, scale * (load_u8(codes + i) - 1 + delta))
