"""IQ4_XS: 256 values d * scale * VALUES[q] (those of IQ4_NL), scale (6 bits, less 32) of 32 values.

In the file: d (f16), upper pairs of the 8 scales (u16), their lower halves (4 bytes), then for each 32 values 16 bytes
as in IQ4_NL. Source: llama.cpp, ggml-quants (block_iq4_xs).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.iq4_nl import PLANES, VALUES
from llmkit.quants.planes import codes_buffer, pack_4, unpack_nibbles
from llmkit.quants.scaled_formats import ScaledFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_u8, store_u16

FORMAT = ScaledFormat(PLANES, 7, "i8_32")
_multiply = tile_operation(FORMAT)
_VALUES = np.array(VALUES, np.int8)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _scale_at(source, part):
    """Scale -32..31 of 32 values."""
    low = load_u8(source + 4 + (part >> 1)) >> (4 * (part & 1))
    return ((low & 15) | ((load_u16(source + 2) >> (2 * part)) & 3) << 4) - 32


@block
def pack(source, target, row):
    codes, after = codes_buffer(), target + 2048
    for part in range(8):
        unpack_nibbles(source + 8 + 16 * part, 16, codes)
        pack_4(codes, target + 256 * part, row)
        store_u8(after + 16 * part + row, _scale_at(source, part))
    store_u16(after + 128 + 2 * row, load_u16(source))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source))
    for part in range(8):
        unpack_nibbles(source + 8 + 16 * part, 16, codes)
        scale = d * _scale_at(source, part)
        for i in range(32):
            store_f32(target + 128 * part + 4 * i, scale * _VALUES[load_u8(codes + i)])
