"""TQ2_0: 256 values d * (q - 1), q of 2 bits.

In the file: 64 bytes of codes (planes.unpack_pairs_256), d (f16). Source: llama.cpp, ggml-quants (block_tq2_0).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, tile
from llmkit.quants.planes import codes_buffer, pack_2, unpack_pairs_256
from llmkit.quants.scaled_formats import TernaryFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_u16

FORMAT = TernaryFormat()
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@block
def pack(source, target, row):
    codes = codes_buffer()
    unpack_pairs_256(source, codes)
    for part in range(8):
        pack_2(codes + 32 * part, target + 128 * part, row)
    store_u16(target + 1024 + 2 * row, load_u16(source + 64))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source + 64))
    unpack_pairs_256(source, codes)
    for i in range(256):
        store_f32(target + 4 * i, d * (load_u8(codes + i) - 1))
