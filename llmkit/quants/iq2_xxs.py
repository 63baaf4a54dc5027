"""IQ2_XXS: 256 values d * (2 s + 1) / 8 * (+-8, +-25 or +-43), s (4 bits) of 32 values.

8 values are one of 256 patterns. In the file: d (f16), then for each 32 values 4 bytes of patterns and 4 times 7 sign
bits with s above them.
Source: llama.cpp, ggml-quants (block_iq2_xxs).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.iq_codes import IQ2_PLANES, IQ2_TABLE, signs_of_7, store_iq2_codes
from llmkit.quants.iq_grids import IQ2_XXS
from llmkit.quants.planes import codes_buffer, pack_3
from llmkit.quants.scaled_formats import ScaledFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, load_u32, store_f32, store_u8, store_u16

FORMAT = ScaledFormat(IQ2_PLANES, 6, "i8_32", 0.125)
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _read_codes(source, codes):
    for k in range(32):
        at = source + 2 + 8 * (k >> 2)
        signs = signs_of_7((load_u32(at + 4) >> 7 * (k & 3)) & 127)
        store_iq2_codes(IQ2_XXS[load_u8(at + (k & 3))], signs, codes + 8 * k)


@helper
def _scale_at(source, part):
    """2 s + 1 of 32 values."""
    return 2 * (load_u8(source + 9 + 8 * part) >> 4) + 1


@block
def pack(source, target, row):
    codes, after = codes_buffer(), target + 1536
    _read_codes(source, codes)
    for part in range(8):
        pack_3(codes + 32 * part, target + 192 * part, row)
        store_u8(after + 16 * part + row, _scale_at(source, part))
    store_u16(after + 128 + 2 * row, load_u16(source))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source))
    _read_codes(source, codes)
    for i in range(256):
        store_f32(target + 4 * i, d * _scale_at(source, i >> 5) * 0.125 * IQ2_TABLE[load_u8(codes + i)])
