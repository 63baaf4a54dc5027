"""Q1_0: 128 values d or -d. In the file: d (f16), 16 bytes: bit j of byte i is set where value 8 i + j is d.

Source: llama.cpp, ggml-quants (block_q1_0); the `gguf` package cannot decode the type.
"""

from __future__ import annotations

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.planes import Planes, codes_buffer, pack_1, spread_bits
from llmkit.quants.small_blocks import SmallBlockFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_i64, store_u16

FORMAT = SmallBlockFormat(4, Planes(1, lift=1), 0)  # 2 times the bit, less 1
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _read_codes(source, codes):
    for i in range(16):
        store_i64(codes + 8 * i, spread_bits(load_u8(source + 2 + i)))


@block
def pack(source, target, row):
    codes = codes_buffer()
    _read_codes(source, codes)
    for part in range(4):
        pack_1(codes + 32 * part, target + 64 * part, row)
    store_u16(target + 256 + 2 * row, load_u16(source))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source))
    _read_codes(source, codes)
    for i in range(128):
        store_f32(target + 4 * i, d * (2 * load_u8(codes + i) - 1))
