"""F16: IEEE half precision values. Source: GGUF specification."""

from __future__ import annotations

from llmkit.kernels.jit import block, tile
from llmkit.quants.formats import FloatFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import f16_bits_to_f32, load_u16, store_f32, store_u16

FORMAT = FloatFormat(2, "load_f16")
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@block
def pack(source, target, row):
    store_u16(target + 2 * row, load_u16(source))


@block
def dequantize(source, target, _row):
    store_f32(target, f16_bits_to_f32(load_u16(source)))
