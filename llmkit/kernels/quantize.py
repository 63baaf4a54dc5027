"""Activations into the groups that matmul reads (see activation_tile): float columns, or 8-bit codes with scales."""

from __future__ import annotations

from llmkit.kernels.activation_tile import (
    Q8_32_NEG_SUM,
    Q8_32_SCALE,
    Q8_32_SCALED_SUM,
    Q8_256_NEG_SUM,
    Q8_256_SCALE,
    Q8_256_SUM,
)
from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.work import n_rows, take
from llmkit.simd.ops import (
    arg,
    hmax,
    hsum_i32,
    load_f32,
    mul,
    round_i32,
    splat,
    store_f32,
    store_i32,
    vabs,
    vload,
    vmax,
    vstore_i8,
)

# x: float32 rows, x_stride bytes a token, n_cols of them; y: groups of group_bytes.
FIELDS = ("counter", "n_rows", "x", "x_stride", "n_cols", "y", "group_bytes")
X, X_STRIDE, N_COLS, Y, GROUP_BYTES = range(2, 7)


@helper
def store_float_row(x, n_cols, y, lane):
    """Spreads a row over a group's columns: token lane 0..7."""
    for i in range(n_cols):
        store_f32(y + 32 * i + 4 * lane, load_f32(x + 4 * i))


@helper
def _codes32(x, inverse, y):
    """Writes 32 codes; the sums of the first and the second 16."""
    low, high = round_i32(mul(vload(x), splat(inverse))), round_i32(mul(vload(x + 64), splat(inverse)))
    vstore_i8(y, low)
    vstore_i8(y + 16, high)
    return hsum_i32(low), hsum_i32(high)


@helper
def _largest32(x):
    return hmax(vmax(vabs(vload(x)), vabs(vload(x + 64))))


@helper
def store_q8_32_row(x, n_cols, y, lane):
    """Quantises a row, 32 columns a block; `y` is the group's address."""
    for block in range(n_cols // 32):
        at, out = x + 128 * block, y + 352 * block
        largest = _largest32(at)
        scale = largest / 127.0
        low, high = _codes32(at, 127.0 / largest if largest > 0 else largest, out + 32 * lane)
        store_f32(out + Q8_32_SCALE + 4 * lane, scale)
        store_i32(out + Q8_32_NEG_SUM + 4 * lane, -(low + high))
        store_f32(out + Q8_32_SCALED_SUM + 4 * lane, scale * (low + high))


@helper
def store_q8_256_row(x, n_cols, y, lane):
    """Quantises a row, 256 columns a block."""
    for block in range(n_cols // 256):
        at, out = x + 1024 * block, y + 2848 * block
        largest = _largest32(at)
        for part in range(1, 8):
            largest = max(largest, _largest32(at + 128 * part))
        inverse = 127.0 / largest if largest > 0 else largest
        store_f32(out + Q8_256_SCALE + 4 * lane, largest / 127.0)
        for part in range(8):
            low, high = _codes32(at + 128 * part, inverse, out + 256 * part + 32 * lane)
            store_i32(out + Q8_256_NEG_SUM + 64 * part + 4 * lane, -low)
            store_i32(out + Q8_256_NEG_SUM + 64 * part + 32 + 4 * lane, -high)
            store_f32(out + Q8_256_SUM + 32 * part + 4 * lane, low + high)


@helper
def _group(args, token):
    return arg(args, Y) + (token >> 3) * arg(args, GROUP_BYTES)


@kernel
def to_f32(args, _thread, _n_threads):
    while True:
        token = take(args, 1)
        if token >= n_rows(args):
            break
        x = arg(args, X) + token * arg(args, X_STRIDE)
        store_float_row(x, arg(args, N_COLS), _group(args, token), token & 7)


@kernel
def to_q8_32(args, _thread, _n_threads):
    while True:
        token = take(args, 1)
        if token >= n_rows(args):
            break
        x = arg(args, X) + token * arg(args, X_STRIDE)
        store_q8_32_row(x, arg(args, N_COLS), _group(args, token), token & 7)


@kernel
def to_q8_256(args, _thread, _n_threads):
    while True:
        token = take(args, 1)
        if token >= n_rows(args):
            break
        x = arg(args, X) + token * arg(args, X_STRIDE)
        store_q8_256_row(x, arg(args, N_COLS), _group(args, token), token & 7)
