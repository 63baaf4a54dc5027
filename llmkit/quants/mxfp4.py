"""MXFP4: 32 values 2^(e - 128) * VALUES[q] (the E2M1 values, doubled). In the file: e (a byte), 16 bytes as in Q4_0.

Source: OCP Microscaling Formats (MX) 1.0; llama.cpp, ggml-quants (block_mxfp4).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.planes import Planes, codes_buffer, pack_4, unpack_nibbles
from llmkit.quants.small_blocks import SmallBlockFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import bits_to_f32, load_u8, store_f32, store_u8

VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
PLANES = Planes(4, [value + 16 for value in VALUES])
FORMAT = SmallBlockFormat(1, PLANES, 4, "e8m0")
_multiply = tile_operation(FORMAT)
_VALUES = np.array(VALUES, np.int8)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _scale(exponent):
    return bits_to_f32((exponent - 1) << 23 if exponent > 1 else 0x00200000 << exponent)


@block
def pack(source, target, row):
    codes = codes_buffer()
    unpack_nibbles(source + 1, 16, codes)
    pack_4(codes, target, row)
    store_u8(target + 256 + row, load_u8(source))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), _scale(load_u8(source))
    unpack_nibbles(source + 1, 16, codes)
    for i in range(32):
        store_f32(target + 4 * i, d * _VALUES[load_u8(codes + i)])
