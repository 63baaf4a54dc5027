"""IQ3_S: 256 values d * (2 s + 1) * +-(2 q + 1), s (4 bits) of 32 values; 4 values are one of 512 patterns.

In the file: d (f16), lower 8 bits of the 64 patterns, 8 bytes of their upper bits, 32 bytes of signs, 4 bytes of s (the
first in the low half). Source: llama.cpp, ggml-quants (block_iq3_s).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.iq_codes import store_iq3_codes
from llmkit.quants.iq_grids import IQ3_S
from llmkit.quants.planes import Planes, codes_buffer, pack_4
from llmkit.quants.scaled_formats import ScaledFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_u8, store_u16

VALUES = (*range(1, 16, 2), *range(-1, -16, -2))
FORMAT = ScaledFormat(Planes(4, [value + 16 for value in VALUES]), 4, "i8_32")
_multiply = tile_operation(FORMAT)
_VALUES = np.array(VALUES, np.int8)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _read_codes(source, codes):
    for k in range(64):
        high = (load_u8(source + 66 + (k >> 3)) >> (k & 7)) & 1
        entry = IQ3_S[load_u8(source + 2 + k) | high << 8]
        store_iq3_codes(entry, load_u8(source + 74 + (k >> 1)) >> 4 * (k & 1), codes + 4 * k)


@helper
def _scale_at(source, part):
    """2 s + 1 of 32 values."""
    return 2 * ((load_u8(source + 106 + (part >> 1)) >> 4 * (part & 1)) & 15) + 1


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
        store_f32(target + 4 * i, d * _scale_at(source, i >> 5) * _VALUES[load_u8(codes + i)])
