"""Activations into the groups that matmul reads (see activation_tile): float columns, or 8-bit codes with scales."""

from __future__ import annotations

from llmkit.kernels.activation_tile import Q8_256_NEG_SUM, Q8_256_SCALE, Q8_256_SUM
from llmkit.kernels.jit import helper, row_kernel
from llmkit.kernels.quantize_tile import (
    larger_magnitudes,
    magnitudes_32,
    quantize_q8_32_1,
    quantize_q8_32_8,
    store_part_256,
    store_scales,
)
from llmkit.simd.ops import arg, load_f32, store_f32

# x: float32 rows, x_stride bytes a token, n_cols of them; y: groups of group_bytes.
# Eight rows that are a whole group are quantised together.
FIELDS = ("x", "x_stride", "n_cols", "y", "group_bytes")
X, X_STRIDE, N_COLS, Y, GROUP_BYTES = range(5)


@helper
def _row(args, row):
    return arg(args, X) + row * arg(args, X_STRIDE)


@helper
def _group(args, row):
    return arg(args, Y) + (row >> 3) * arg(args, GROUP_BYTES)


@row_kernel
def to_f32(args, first_row, last_row):
    for row in range(first_row, last_row):
        x, y = _row(args, row), _group(args, row) + 4 * (row & 7)
        for i in range(arg(args, N_COLS)):
            store_f32(y + 32 * i, load_f32(x + 4 * i))


@row_kernel
def to_q8_32(args, first_row, last_row):
    n_blocks, stride = arg(args, N_COLS) // 32, arg(args, X_STRIDE)
    if last_row - first_row == 8 and first_row & 7 == 0:
        for block in range(n_blocks):
            quantize_q8_32_8(_row(args, first_row) + 128 * block, stride, _group(args, first_row) + 352 * block)
        return
    for row in range(first_row, last_row):
        x, y, lane = _row(args, row), _group(args, row), row & 7
        for block in range(n_blocks):
            at = y + 352 * block
            quantize_q8_32_1(x + 128 * block, at + 32 * lane, at + 4 * lane)


@helper
def _quantize_256(x, y, lane):
    """256 columns of one token into a Q8_256 block."""
    magnitudes = magnitudes_32(x)
    for part in range(1, 8):
        magnitudes = larger_magnitudes(magnitudes, magnitudes_32(x + 128 * part))
    sums = y + Q8_256_SUM + 4 * lane
    inverse = sums + 32 * 7  # waits where the last sum will be
    store_scales(magnitudes, y + Q8_256_SCALE + 4 * lane, inverse)
    for part in range(8):
        neg_sums = y + Q8_256_NEG_SUM + 64 * part + 4 * lane
        store_part_256(x + 128 * part, inverse, y + 256 * part + 32 * lane, neg_sums, sums + 32 * part)


@row_kernel
def to_q8_256(args, first_row, last_row):
    for row in range(first_row, last_row):
        x, y = _row(args, row), _group(args, row)
        for block in range(arg(args, N_COLS) // 256):
            _quantize_256(x + 1024 * block, y + 2848 * block, row & 7)
