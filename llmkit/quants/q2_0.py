"""Q2_0: 64 values d * (q - 1), q of 2 bits. In the file: d (f16), 16 bytes: value 4 i + j is pair j of byte i.

Source: llama.cpp, ggml-quants (block_q2_0); the `gguf` package does not know the type.
"""

from __future__ import annotations

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.planes import Planes, codes_buffer, pack_2, spread_pairs
from llmkit.quants.small_blocks import SmallBlockFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_i64, store_u16

FORMAT = SmallBlockFormat(2, Planes(2), 0)
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _read_codes(source, codes):
    for i in range(8):
        store_i64(codes + 8 * i, spread_pairs(load_u16(source + 2 + 2 * i)))


@block
def pack(source, target, row):
    codes = codes_buffer()
    _read_codes(source, codes)
    for part in range(2):
        pack_2(codes + 32 * part, target + 128 * part, row)
    store_u16(target + 256 + 2 * row, load_u16(source))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source))
    _read_codes(source, codes)
    for i in range(64):
        store_f32(target + 4 * i, d * (load_u8(codes + i) - 1))
