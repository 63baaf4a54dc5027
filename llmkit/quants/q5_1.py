"""Q5_1: 32 values d * q + m. In the file: d, m (f16), fifth bits (u32, bit i of value i), 16 bytes of low halves.

Source: llama.cpp, ggml-quants (block_q5_1).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, tile
from llmkit.quants.formats import Block32Format
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import (
    f16_bits_to_f32,
    load_i32,
    load_u8,
    load_u16,
    load_u32,
    store_f32,
    store_i32,
    store_u8,
    store_u16,
)

FORMAT = Block32Format(5, has_min=True)
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@block
def pack(source, target, row):
    store_u16(target + 320 + 2 * row, load_u16(source))
    store_u16(target + 352 + 2 * row, load_u16(source + 2))
    for group in range(4):
        store_i32(target + 64 * group + 4 * row, load_i32(source + 8 + 4 * group))
    high = load_u32(source + 4)
    for j in range(4):
        # Byte j of the row takes column 4 g + j of every group g: bits j, j + 4, ...
        bits = 0
        for group in range(8):
            bits |= ((high >> (4 * group + j)) & 1) << group
        store_u8(target + 256 + 4 * row + j, bits)


@block
def dequantize(source, target, _row):
    d, m, high = f16_bits_to_f32(load_u16(source)), f16_bits_to_f32(load_u16(source + 2)), load_u32(source + 4)
    for i in range(16):
        q = load_u8(source + 8 + i)
        store_f32(target + 4 * i, d * ((q & 15) | ((high >> i) & 1) << 4) + m)
        store_f32(target + 4 * i + 64, d * ((q >> 4) | ((high >> (i + 16)) & 1) << 4) + m)
