"""NVFP4: 64 values scale * VALUES[q] (those of MXFP4), scale (unsigned E4M3, halved) of 16 values.

In the file: 4 scales, then for each 16 values 8 bytes with value i in the low, i + 8 in the high half. The scale 0x7F
is 0, bit 7 counts for nothing (but makes 0xFF not 0). Source: llama.cpp, ggml-quants (block_nvfp4).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.mxfp4 import PLANES, VALUES
from llmkit.quants.planes import codes_buffer, pack_4, unpack_nibbles
from llmkit.quants.small_blocks import Nvfp4Format
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import bits_to_f32, load_u8, store_f32, store_u8

FORMAT = Nvfp4Format(PLANES)
_multiply = tile_operation(FORMAT)
_VALUES = np.array(VALUES, np.int8)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _plain(scale):
    """The scale as E4M3 without exceptions: 0x7F is then what 0xFF was."""
    return 0 if scale == 0x7F else scale & 0x7F


@helper
def _read_codes(source, codes):
    for k in range(4):
        unpack_nibbles(source + 4 + 8 * k, 8, codes + 16 * k)


@block
def pack(source, target, row):
    codes = codes_buffer()
    _read_codes(source, codes)
    for part in range(2):
        pack_4(codes + 32 * part, target + 256 * part, row)
    for k in range(4):
        store_u8(target + 512 + 16 * k + row, _plain(load_u8(source + k)))


@block
def dequantize(source, target, _row):
    codes = codes_buffer()
    _read_codes(source, codes)
    for i in range(64):
        scale = bits_to_f32(_plain(load_u8(source + (i >> 4))) << 20) * 2.0**119
        store_f32(target + 4 * i, scale * _VALUES[load_u8(codes + i)])
