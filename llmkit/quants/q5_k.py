"""Q5_K: 256 values d * scale * q - dmin * min, scale and min (6 bits) of 32 values.

In the file: d, dmin (f16), 12 bytes of scales, 32 bytes of fifth bits (bit p of byte i: value i of part p), then low
halves as in Q4_K. Source: llama.cpp, ggml-quants (block_q5_K).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, tile
from llmkit.quants.k_scales import min_at, scale_at
from llmkit.quants.super_block import ScaleMinFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_u8, store_u16

FORMAT = ScaleMinFormat(5)
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@block
def pack(source, target, row):
    after = target + 2560
    store_u16(after + 256 + 2 * row, load_u16(source))
    store_u16(after + 288 + 2 * row, load_u16(source + 2))
    for part in range(8):
        store_u8(after + 16 * part + row, scale_at(source + 4, part))
        store_u8(after + 128 + 16 * part + row, min_at(source + 4, part))
        codes, shift = source + 48 + 32 * (part >> 1), 4 * (part & 1)
        for i in range(16):
            low, high = (load_u8(codes + i) >> shift) & 15, (load_u8(codes + i + 16) >> shift) & 15
            store_u8(target + 320 * part + 64 * (i >> 2) + 4 * row + (i & 3), low | high << 4)
        for j in range(4):
            bits = 0
            for group in range(8):
                bits |= ((load_u8(source + 16 + 4 * group + j) >> part) & 1) << group
            store_u8(target + 320 * part + 256 + 4 * row + j, bits)


@block
def dequantize(source, target, _row):
    d, dmin = f16_bits_to_f32(load_u16(source)), f16_bits_to_f32(load_u16(source + 2))
    for part in range(8):
        scale, minimum = d * scale_at(source + 4, part), dmin * min_at(source + 4, part)
        codes, shift = source + 48 + 32 * (part >> 1), 4 * (part & 1)
        for i in range(32):
            q = (load_u8(codes + i) >> shift) & 15 | ((load_u8(source + 16 + i) >> part) & 1) << 4
            store_f32(target + 128 * part + 4 * i, scale * q - minimum)
