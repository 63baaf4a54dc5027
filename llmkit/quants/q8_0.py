"""Q8_0: 32 values d * q. In the file: d (f16), 32 int8.

The tile holds q + 128, unsigned, as the byte dot products want it. Source: llama.cpp, ggml-quants (block_q8_0).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, tile
from llmkit.quants.formats import Block32Format
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_i8, load_i32, load_u16, store_f32, store_i32, store_u16

FORMAT = Block32Format(8, has_min=False)
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@block
def pack(source, target, row):
    store_u16(target + 512 + 2 * row, load_u16(source))
    for group in range(8):
        store_i32(target + 64 * group + 4 * row, load_i32(source + 2 + 4 * group) ^ 0x80808080)


@block
def dequantize(source, target, _row):
    d = f16_bits_to_f32(load_u16(source))
    for i in range(32):
        store_f32(target + 4 * i, d * load_i8(source + 2 + i))
