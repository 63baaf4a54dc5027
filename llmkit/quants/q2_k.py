"""Q2_K: 256 values d * scale * q - dmin * min, scale and min (4 bits) of 16 values.

In the file: 16 bytes with scale in the low, min in the high half; 64 bytes of codes (planes.unpack_pairs_256); d, dmin
(f16). Source: llama.cpp, ggml-quants (block_q2_K).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, tile
from llmkit.quants.planes import codes_buffer, pack_2, unpack_pairs_256
from llmkit.quants.scaled_formats import Q2KFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_u8, store_u16

FORMAT = Q2KFormat()
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@block
def pack(source, target, row):
    codes, after = codes_buffer(), target + 1024
    unpack_pairs_256(source + 16, codes)
    for part in range(8):
        pack_2(codes + 32 * part, target + 128 * part, row)
    for k in range(16):
        store_u8(after + 16 * k + row, load_u8(source + k))
    store_u16(after + 256 + 2 * row, load_u16(source + 80))
    store_u16(after + 288 + 2 * row, load_u16(source + 82))


@block
def dequantize(source, target, _row):
    codes = codes_buffer()
    unpack_pairs_256(source + 16, codes)
    d, dmin = f16_bits_to_f32(load_u16(source + 80)), f16_bits_to_f32(load_u16(source + 82))
    for i in range(256):
        scales = load_u8(source + (i >> 4))
        store_f32(target + 4 * i, d * (scales & 15) * load_u8(codes + i) - dmin * (scales >> 4))
