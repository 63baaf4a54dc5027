"""IQ1_S: 256 values d * (2 s + 1) * (g + delta), g of -1, 0, 1; 8 values are one of 2048 patterns.

s (3 bits) and the sign of delta (1/8) are of 32 values. In the file: d (f16), lower 8 bits of the 32 patterns, for each
32 values 4 times the upper 3 bits, s, and the sign (u16). Source: llama.cpp, ggml-quants (block_iq1_s).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.iq_grids import IQ1
from llmkit.quants.planes import codes_buffer, pack_2, spread_pairs
from llmkit.quants.scaled_formats import Iq1SFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_i64, store_u8, store_u16

FORMAT = Iq1SFormat()
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _read_codes(source, codes):
    """g + 1 of all values."""
    for k in range(32):
        high = (load_u16(source + 34 + 2 * (k >> 2)) >> 3 * (k & 3)) & 7
        store_i64(codes + 8 * k, spread_pairs(IQ1[load_u8(source + 2 + k) | high << 8]))


@helper
def _scale_at(source, part):
    """2 s + 1 of 32 values, negative where delta is."""
    packed = load_u16(source + 34 + 2 * part)
    scale = 2 * (packed >> 12 & 7) + 1
    return scale if packed < 0x8000 else -scale


@block
def pack(source, target, row):
    codes, after = codes_buffer(), target + 1024
    _read_codes(source, codes)
    for part in range(8):
        pack_2(codes + 32 * part, target + 128 * part, row)
        store_u8(after + 16 * part + row, _scale_at(source, part))
    store_u16(after + 128 + 2 * row, load_u16(source))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source))
    _read_codes(source, codes)
    for i in range(256):
        scale = _scale_at(source, i >> 5)
        delta = 0.125 if scale > 0 else -0.125
        store_f32(target + 4 * i, d * abs(scale) * (load_u8(codes + i) - 1 + delta))
