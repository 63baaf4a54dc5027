"""Q3_K: 256 values d * scale * (q - 4), scale (6 bits, less 32) of 16 values.

In the file: 32 bytes of third bits (bit p of byte i: value i of 32-value part p), 64 bytes of lower bit pairs
(planes.unpack_pairs_256), 12 bytes of scales (lower halves of 0..7 and 8..15 in 8 bytes, then upper pairs), d (f16).
Source: llama.cpp, ggml-quants (block_q3_K).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.planes import Planes, codes_buffer, pack_3, unpack_pairs_256
from llmkit.quants.scaled_formats import ScaledFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_i32, load_u8, load_u16, store_f32, store_i32, store_u8, store_u16

FORMAT = ScaledFormat(Planes(3), 2, "i8_16")
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _read_codes(source, codes):
    unpack_pairs_256(source + 32, codes)
    for part in range(8):
        for i in range(0, 32, 4):
            high = (load_i32(source + i) >> part) & 0x01010101
            at = codes + 32 * part + i
            store_i32(at, load_i32(at) | high << 2)


@helper
def _scale_at(source, k):
    """Scale -32..31 of 16 values, k = 0..15."""
    low = load_u8(source + 96 + (k & 7)) >> (4 * (k >> 3))
    high = load_u8(source + 104 + (k & 3)) >> (2 * (k >> 2))
    return ((low & 15) | (high & 3) << 4) - 32


@block
def pack(source, target, row):
    codes, after = codes_buffer(), target + 1536
    _read_codes(source, codes)
    for part in range(8):
        pack_3(codes + 32 * part, target + 192 * part, row)
    for k in range(16):
        store_u8(after + 16 * k + row, _scale_at(source, k))
    store_u16(after + 256 + 2 * row, load_u16(source + 108))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source + 108))
    _read_codes(source, codes)
    for i in range(256):
        store_f32(target + 4 * i, d * _scale_at(source, i >> 4) * (load_u8(codes + i) - 4))
