"""Whole rows: embeddings, the rows whose logits were asked for, scales and biases, capped and clamped values."""

from __future__ import annotations

from llmkit.kernels.jit import kernel, row_kernel
from llmkit.kernels.work import n_rows, run_length, take
from llmkit.simd.ops import (
    add,
    arg,
    bits_to_f32,
    call_kernel,
    copy_bytes,
    div,
    exp,
    fma,
    load_f32,
    load_i32,
    load_i64,
    mul,
    splat,
    store_f32,
    sub,
    vload,
    vload_splat,
    vstore,
)

# indices: int32 or int64 [n_rows], index_bytes each; one above `last` counts as `last`; w: the file's rows, row_bytes
# each, n_blocks blocks of block_bytes, block columns each; dequantize: address of the type's block function; scale:
# float32 bits; y: float32 rows, y_stride bytes apart.
EMBED_FIELDS = (
    "counter",
    "n_rows",
    "indices",
    "index_bytes",
    "last",
    "w",
    "row_bytes",
    "n_blocks",
    "block_bytes",
    "block",
    "dequantize",
    "scale",
    "y",
    "y_stride",
)
(
    INDICES,
    INDEX_BYTES,
    LAST,
    W,
    ROW_BYTES,
    N_BLOCKS,
    BLOCK_BYTES,
    BLOCK,
    DEQUANTIZE,
    SCALE,
    EMBED_Y,
    EMBED_Y_STRIDE,
) = range(2, 14)

# rows: int64 [n_rows], the rows of x to copy; n_bytes of each.
GATHER_FIELDS = ("counter", "n_rows", "rows", "x", "x_stride", "y", "y_stride", "n_bytes")
ROWS, GATHER_X, GATHER_X_STRIDE, GATHER_Y, GATHER_Y_STRIDE, N_BYTES = range(2, 8)

# y = (x + before) * scale + after (+ y); before, after: float32 [n_cols] or 0; scale: address of a float32.
AFFINE_FIELDS = ("counter", "n_rows", "x", "y", "stride", "n_cols", "before", "scale", "after", "accumulate")
AFFINE_X, AFFINE_Y, AFFINE_STRIDE, N_COLS, BEFORE, AFFINE_SCALE, AFTER, ACCUMULATE = range(2, 10)

# x = cap * tanh(x / cap), in place; cap: float32 bits; n_vectors of 16 columns.
SOFTCAP_FIELDS = ("counter", "n_rows", "x", "stride", "n_vectors", "cap")
CAP_X, CAP_STRIDE, CAP_VECTORS, CAP = range(2, 6)

# x = within -limit .. limit, in place; limit: float32 bits.
CLAMP_FIELDS = ("x", "stride", "n_cols", "limit")
CLAMP_X, CLAMP_STRIDE, CLAMP_COLS, LIMIT = range(4)

# x *= factors[positions[row]]; positions: int64 [rows]; factors: float32 [last + 1]; positions beyond `last` take it.
SCALE_FIELDS = ("positions", "factors", "last", "x", "stride", "n_vectors")
SCALE_POSITIONS, FACTORS, LAST_FACTOR, SCALE_X, SCALE_STRIDE, SCALE_VECTORS = range(6)


@kernel
def embed(args, _thread, n_threads):
    scale, block = bits_to_f32(arg(args, SCALE)), arg(args, BLOCK)
    items = n_rows(args)
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for row in range(first_item, min(first_item + run, items)):
            index = load_i32(arg(args, INDICES) + row * arg(args, INDEX_BYTES))  # the low half of an int64
            source = arg(args, W) + min(index, arg(args, LAST)) * arg(args, ROW_BYTES)
            y = arg(args, EMBED_Y) + row * arg(args, EMBED_Y_STRIDE)
            for k in range(arg(args, N_BLOCKS)):
                call_kernel(arg(args, DEQUANTIZE), source + k * arg(args, BLOCK_BYTES), y + 4 * k * block, 0)
            if scale != 1.0:
                for i in range(arg(args, N_BLOCKS) * block):
                    store_f32(y + 4 * i, load_f32(y + 4 * i) * scale)


@kernel
def gather(args, _thread, n_threads):
    items = n_rows(args)
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for row in range(first_item, min(first_item + run, items)):
            source = arg(args, GATHER_X) + load_i64(arg(args, ROWS) + 8 * row) * arg(args, GATHER_X_STRIDE)
            copy_bytes(arg(args, GATHER_Y) + row * arg(args, GATHER_Y_STRIDE), source, arg(args, N_BYTES))


@kernel
def affine(args, _thread, n_threads):
    scale = load_f32(arg(args, AFFINE_SCALE))
    before, after, accumulate = arg(args, BEFORE), arg(args, AFTER), arg(args, ACCUMULATE)
    items = n_rows(args)
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for row in range(first_item, min(first_item + run, items)):
            x = arg(args, AFFINE_X) + row * arg(args, AFFINE_STRIDE)
            y = arg(args, AFFINE_Y) + row * arg(args, AFFINE_STRIDE)
            for i in range(arg(args, N_COLS)):
                v = load_f32(x + 4 * i)
                if before != 0:
                    v += load_f32(before + 4 * i)
                v *= scale
                if after != 0:
                    v += load_f32(after + 4 * i)
                if accumulate != 0:
                    v += load_f32(y + 4 * i)
                store_f32(y + 4 * i, v)


@kernel
def softcap(args, _thread, n_threads):
    cap = bits_to_f32(arg(args, CAP))
    items = n_rows(args)
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for row in range(first_item, min(first_item + run, items)):
            x = arg(args, CAP_X) + row * arg(args, CAP_STRIDE)
            for i in range(arg(args, CAP_VECTORS)):
                # tanh(u) = 2 / (1 + e^-2u) - 1
                e = exp(mul(splat(-2.0), div(vload(x + 64 * i), splat(cap))))
                tanh = sub(div(splat(2.0), add(splat(1.0), e)), splat(1.0))
                vstore(x + 64 * i, fma(tanh, splat(cap), splat(0.0)))


@row_kernel
def clamp(args, first_row, last_row):
    limit = bits_to_f32(arg(args, LIMIT))
    for row in range(first_row, last_row):
        x = arg(args, CLAMP_X) + row * arg(args, CLAMP_STRIDE)
        for i in range(arg(args, CLAMP_COLS)):
            v = load_f32(x + 4 * i)
            if v > limit:
                store_f32(x + 4 * i, limit)
            elif v < -limit:
                store_f32(x + 4 * i, -limit)


@row_kernel
def scale_rows(args, first_row, last_row):
    for row in range(first_row, last_row):
        position = min(load_i64(arg(args, SCALE_POSITIONS) + 8 * row), arg(args, LAST_FACTOR))
        factor = vload_splat(arg(args, FACTORS) + 4 * position)
        x = arg(args, SCALE_X) + row * arg(args, SCALE_STRIDE)
        for i in range(arg(args, SCALE_VECTORS)):
            vstore(x + 64 * i, mul(vload(x + 64 * i), factor))
