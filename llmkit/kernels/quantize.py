"""Activations into the groups that matmul reads (see activation_tile): float columns, or 8-bit codes with scales."""

from __future__ import annotations

from llmkit.kernels.activation_tile import Q8_256_NEG_SUM, Q8_256_SCALE, Q8_256_SUM
from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.quantize_tile import (
    larger_magnitudes,
    magnitudes_32,
    quantize_q8_32_1,
    quantize_q8_32_8,
    store_part_256,
    store_scales,
)
from llmkit.kernels.work import n_rows, run_length, take
from llmkit.simd.ops import arg, load_f32, store_f32

# x: float32 rows, x_stride bytes a token, n_cols of them, room for a multiple of 8 rows; y: groups of group_bytes.
FIELDS = ("counter", "n_rows", "x", "x_stride", "n_cols", "y", "group_bytes")
X, X_STRIDE, N_COLS, Y, GROUP_BYTES = range(2, 7)

# An item is some columns of a group of 8 tokens: no two threads write to one cache line.
_RUN_COLS = 512


@helper
def _run(args, item):
    """Group, first and last column of an item."""
    n_cols = arg(args, N_COLS)
    runs = (n_cols + _RUN_COLS - 1) // _RUN_COLS
    first = item % runs * _RUN_COLS
    return item // runs, first, min(first + _RUN_COLS, n_cols)


@helper
def _n_items(args):
    return (n_rows(args) + 7) // 8 * ((arg(args, N_COLS) + _RUN_COLS - 1) // _RUN_COLS)


@kernel
def to_f32(args, _thread, n_threads):
    items, stride = _n_items(args), arg(args, X_STRIDE)
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for item in range(first_item, min(first_item + run, items)):
            group, first, last = _run(args, item)
            x, y = arg(args, X) + 8 * group * stride, arg(args, Y) + group * arg(args, GROUP_BYTES)
            for lane in range(min(8, n_rows(args) - 8 * group)):
                for i in range(first, last):
                    store_f32(y + 32 * i + 4 * lane, load_f32(x + lane * stride + 4 * i))


@kernel
def to_q8_32(args, _thread, n_threads):
    items, stride = _n_items(args), arg(args, X_STRIDE)
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for item in range(first_item, min(first_item + run, items)):
            group, first, last = _run(args, item)
            x, y = arg(args, X) + 8 * group * stride, arg(args, Y) + group * arg(args, GROUP_BYTES)
            if n_rows(args) - 8 * group == 1:
                for block in range(first // 32, last // 32):
                    quantize_q8_32_1(x + 128 * block, stride, y + 352 * block)
            else:
                for block in range(first // 32, last // 32):
                    quantize_q8_32_8(x + 128 * block, stride, y + 352 * block)


@helper
def _quantize_256(x, y, lane):
    """256 columns of one token into a Q8_256 block."""
    magnitudes = magnitudes_32(x)
    for part in range(1, 8):
        magnitudes = larger_magnitudes(magnitudes, magnitudes_32(x + 128 * part))
    sums = y + Q8_256_SUM + 4 * lane
    store_scales(magnitudes, y + Q8_256_SCALE + 4 * lane, sums)  # the inverse waits where the last sum will be
    inverse = sums + 32 * 7
    store_f32(inverse, load_f32(sums))
    for part in range(8):
        neg_sums = y + Q8_256_NEG_SUM + 64 * part + 4 * lane
        store_part_256(x + 128 * part, inverse, y + 256 * part + 32 * lane, neg_sums, sums + 32 * part)


@kernel
def to_q8_256(args, _thread, n_threads):
    items, stride = _n_items(args), arg(args, X_STRIDE)
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for item in range(first_item, min(first_item + run, items)):
            group, first, last = _run(args, item)
            x, y = arg(args, X) + 8 * group * stride, arg(args, Y) + group * arg(args, GROUP_BYTES)
            for lane in range(min(8, n_rows(args) - 8 * group)):
                for block in range(first // 256, last // 256):
                    _quantize_256(x + lane * stride + 1024 * block, y + 2848 * block, lane)
