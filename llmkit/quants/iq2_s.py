"""IQ2_S: 256 values d * (2 s + 1) / 8 * (+-8, +-25 or +-43), s (4 bits) of 16 values.

8 values are one of 1024 patterns. In the file: d (f16), lower 8 bits of the 32 patterns, 32 bytes of signs, 8 bytes
with the patterns' upper bit pairs, for each 32 values a byte with s of the first 16 in the low half.
Source: llama.cpp, ggml-quants (block_iq2_s).
"""

from __future__ import annotations

from llmkit.kernels.jit import block, helper, tile
from llmkit.quants.iq_codes import IQ2_PLANES, IQ2_TABLE, store_iq2_codes
from llmkit.quants.iq_grids import IQ2_S
from llmkit.quants.planes import codes_buffer, pack_3
from llmkit.quants.scaled_formats import ScaledFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u8, load_u16, store_f32, store_u8, store_u16

FORMAT = ScaledFormat(IQ2_PLANES, 6, "odd_16", 0.125)
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@helper
def _read_codes(source, codes):
    for k in range(32):
        high = (load_u8(source + 66 + (k >> 2)) >> 2 * (k & 3)) & 3
        entry = IQ2_S[load_u8(source + 2 + k) | high << 8]
        store_iq2_codes(entry, load_u8(source + 34 + k), codes + 8 * k)


@block
def pack(source, target, row):
    codes, after = codes_buffer(), target + 1536
    _read_codes(source, codes)
    for part in range(8):
        pack_3(codes + 32 * part, target + 192 * part, row)
        store_u8(after + 16 * part + row, load_u8(source + 74 + part))
    store_u16(after + 128 + 2 * row, load_u16(source))


@block
def dequantize(source, target, _row):
    codes, d = codes_buffer(), f16_bits_to_f32(load_u16(source))
    _read_codes(source, codes)
    for i in range(256):
        scale = (load_u8(source + 74 + (i >> 5)) >> (4 * (i >> 4 & 1))) & 15
        store_f32(target + 4 * i, d * (2 * scale + 1) * 0.125 * IQ2_TABLE[load_u8(codes + i)])
