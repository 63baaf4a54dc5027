"""TQ1_0: 256 values d * (q - 1), q of 0, 1, 2, five to a byte. Tiles hold them in 2 bits, as TQ2_0: 66 bytes for 54.

In the file: 48 bytes of 5 values, 4 bytes of 4 values, d (f16). A byte b is the fraction b / 256 in base 3, rounded up:
digit n is the integer part of 3 times the fraction of 3^n b / 256. Values 32 n + i (below 160) are digit n of byte i,
160 + 16 n + i of byte 32 + i, 240 + 4 n + i of byte 48 + i. Source: llama.cpp, ggml-quants (block_tq1_0).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.planes import codes_buffer, pack_2
from llmkit.quants.scaled_formats import TernaryFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_u8, store_u16

FORMAT = TernaryFormat()
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _read_digits(source, n_bytes, n_digits, codes):
    power = 1
    for n in range(n_digits):
        for i in range(n_bytes):
            fraction = (load_u8(source + i) * power) & 255
            store_u8(codes + n_bytes * n + i, (3 * fraction) >> 8)
        power *= 3


@helper
def _read_codes(source, codes):
    _read_digits(source, 32, 5, codes)
    _read_digits(source + 32, 16, 5, codes + 160)
    _read_digits(source + 48, 4, 4, codes + 240)


@block
def pack(source, target, row):
    codes = codes_buffer()
    _read_codes(source, codes)
    for part in range(8):
        pack_2(codes + 32 * part, target + 128 * part, row)
    store_u16(target + 1024 + 2 * row, load_u16(source + 52))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source + 52))
    _read_codes(source, codes)
    for i in range(256):
        store_f32(target + 4 * i, d * (load_u8(codes + i) - 1))
