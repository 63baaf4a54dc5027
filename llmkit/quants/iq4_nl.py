"""IQ4_NL: 32 values d * VALUES[q]. In the file: d (f16), 16 bytes with value i in the low, i + 16 in the high half.

Source: llama.cpp, ggml-quants (block_iq4_nl) and ggml-common (kvalues_iq4nl).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import block, tile
from llmkit.quants.planes import Planes, codes_buffer, pack_4, unpack_nibbles
from llmkit.quants.small_blocks import SmallBlockFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_u16

VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
PLANES = Planes(4, [value + 128 for value in VALUES])
FORMAT = SmallBlockFormat(1, PLANES, 7)
_multiply = tile_operation(FORMAT)
_VALUES = np.array(VALUES, np.int8)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@block
def pack(source, target, row):
    codes = codes_buffer()
    unpack_nibbles(source + 2, 16, codes)
    pack_4(codes, target, row)
    store_u16(target + 256 + 2 * row, load_u16(source))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source))
    unpack_nibbles(source + 2, 16, codes)
    for i in range(32):
        store_f32(target + 4 * i, d * _VALUES[load_u8(codes + i)])
