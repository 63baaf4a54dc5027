"""F32: float32 values. Source: GGUF specification."""

from __future__ import annotations

from llmkit.kernels.jit import block, tile
from llmkit.quants.formats import FloatFormat
from llmkit.quants.tile import tile_operation
from llmkit.simd.ops import load_f32, store_f32

FORMAT = FloatFormat(4, "load_f32")
_multiply = tile_operation(FORMAT)


@tile
def multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens):
    _multiply(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)


@block
def pack(source, target, row):
    store_f32(target + 4 * row, load_f32(source))


@block
def dequantize(source, target, _row):
    store_f32(target, load_f32(source))
