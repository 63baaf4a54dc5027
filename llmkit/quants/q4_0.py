"""Q4_0: 32 values d * (q - 8). In the file: d (f16), 16 bytes with value i in the low, i + 16 in the high half.

Source: llama.cpp, ggml-quants (block_q4_0).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, tile
from llmkit.quants.formats import Block32Format
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_i32, load_u8, load_u16, store_f32, store_i32, store_u16

FORMAT = Block32Format(4, has_min=False)
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@block
def pack(source, target, row):
    store_u16(target + 256 + 2 * row, load_u16(source))
    for group in range(4):
        store_i32(target + 64 * group + 4 * row, load_i32(source + 2 + 4 * group))


@block
def dequantize(source, target, _row):
    d = f16_bits_to_f32(load_u16(source))
    for i in range(16):
        q = load_u8(source + 2 + i)
        store_f32(target + 4 * i, d * ((q & 15) - 8))
        store_f32(target + 4 * i + 64, d * ((q >> 4) - 8))
