"""IQ3_XXS: 256 values d * (2 s + 1) / 4 * +-MAGNITUDES[q], s (4 bits) of 32 values; 4 values are one of 256 patterns.

In the file: d (f16), 64 bytes of patterns, for each 32 values 4 times 7 sign bits with s above them (u32).
Source: llama.cpp, ggml-quants (block_iq3_xxs).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.iq_codes import signs_of_7, store_iq3_codes
from llmkit.quants.iq_grids import IQ3_XXS
from llmkit.quants.planes import Planes, codes_buffer, pack_4
from llmkit.quants.scaled_formats import ScaledFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, load_u32, store_f32, store_u8, store_u16

MAGNITUDES = (4, 12, 20, 28, 36, 44, 52, 62)
VALUES = (*MAGNITUDES, *(-value for value in MAGNITUDES))
FORMAT = ScaledFormat(Planes(4, [value + 64 for value in VALUES]), 6, "i8_32", 0.25)
_multiply = tile_operation(FORMAT)
_VALUES = np.array(VALUES, np.int8)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _read_codes(source, codes):
    for k in range(32):
        signs = signs_of_7((load_u32(source + 66 + 4 * (k >> 2)) >> 7 * (k & 3)) & 127)
        for half in range(2):
            entry = IQ3_XXS[load_u8(source + 2 + 2 * k + half)]
            store_iq3_codes(entry, signs >> 4 * half, codes + 8 * k + 4 * half)


@helper
def _scale_at(source, part):
    """2 s + 1 of 32 values."""
    return 2 * (load_u8(source + 69 + 4 * part) >> 4) + 1


@block
def pack(source, target, row):
    codes, after = codes_buffer(), target + 2048
    _read_codes(source, codes)
    for part in range(8):
        pack_4(codes + 32 * part, target + 256 * part, row)
        store_u8(after + 16 * part + row, _scale_at(source, part))
    store_u16(after + 128 + 2 * row, load_u16(source))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source))
    _read_codes(source, codes)
    for i in range(256):
        store_f32(target + 4 * i, d * _scale_at(source, i >> 5) * 0.25 * _VALUES[load_u8(codes + i)])
