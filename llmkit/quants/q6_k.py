"""Q6_K: 256 values d * scale * (q - 32), scale (int8) of 16 values.

In the file: 128 bytes of low halves, 64 bytes of upper bit pairs, 16 scales, d (f16). Of each 128 values, value
32 k + i has its low half in byte 32 (k mod 2) + i, half k // 2, and its upper bits in byte i, pair k.
Source: llama.cpp, ggml-quants (block_q6_K).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.super_block import Q6KFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_i8, load_u8, load_u16, store_f32, store_u8, store_u16

FORMAT = Q6KFormat()
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def code_at(source, part, i):
    """Code 0..63 of value i of 32-column part 0..7."""
    half, k = part >> 2, part & 3
    low = load_u8(source + 64 * half + 32 * (k & 1) + i) >> (4 * (k >> 1))
    high = load_u8(source + 128 + 32 * half + i) >> (2 * k)
    return (low & 15) | (high & 3) << 4


@block
def pack(source, target, row):
    after = target + 3072
    store_u16(after + 256 + 2 * row, load_u16(source + 208))
    for k in range(16):
        store_u8(after + 16 * k + row, load_u8(source + 192 + k))
    for part in range(8):
        codes = target + 384 * part
        for i in range(16):
            low, high = code_at(source, part, i) & 15, code_at(source, part, i + 16) & 15
            store_u8(codes + 64 * (i >> 2) + 4 * row + (i & 3), low | high << 4)
        for half in range(2):
            for j in range(4):
                bits = 0
                for group in range(4):
                    bits |= (code_at(source, part, 16 * half + 4 * group + j) >> 4) << 2 * group
                store_u8(codes + 256 + 64 * half + 4 * row + j, bits)


@block
def dequantize(source, target, _row):
    d = f16_bits_to_f32(load_u16(source + 208))
    for part in range(8):
        for i in range(32):
            scale = d * load_i8(source + 192 + 2 * part + (i >> 4))
            store_f32(target + 128 * part + 4 * i, scale * (code_at(source, part, i) - 32))
