"""KL divergence between two rows of log-probabilities, and the 16-bit form in which llama.cpp keeps a row in a file.

KL(base || x) = sum over i of p_base(i) (log p_base(i) - log p_x(i)). Sums are taken as in log_softmax.

A 16-bit row: float32 scale, float32 lowest, then a uint16 q a column: log p = scale q + lowest. What lies more than 16
below the largest is kept as the lowest.
"""

from __future__ import annotations

import math

from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.log_softmax import LARGEST, LOG_SUM, RUN, STATS
from llmkit.kernels.work import n_rows, take
from llmkit.simd.ops import (
    add,
    arg,
    exp,
    fma,
    fma1,
    hmax,
    hsum,
    keep_lanes,
    load_f32,
    load_f64,
    load_u16,
    mul,
    round_i32,
    splat,
    store_f32,
    store_f64,
    sub,
    vload,
    vload_u16,
    vmax,
    vstore_u16,
    where_above,
)

# x, base: float32 rows as log_softmax reads them; x_stats, base_stats: what it wrote. y: float64 [n_rows], divergences.
KL_FIELDS = ("counter", "n_rows", "x", "x_stride", "x_stats", "base", "base_stride", "base_stats", "n_cols", "y")
KL_X, KL_X_STRIDE, KL_X_STATS, KL_BASE, KL_BASE_STRIDE, KL_BASE_STATS, KL_N_COLS, KL_Y = range(2, 10)

# x, x_stats: as above; packed: 16-bit rows, packed_stride bytes apart, each written up to 15 columns beyond its end.
PACK_FIELDS = ("counter", "n_rows", "x", "x_stride", "x_stats", "n_cols", "packed", "packed_stride")
PACK_X, PACK_X_STRIDE, PACK_X_STATS, PACK_N_COLS, PACKED, PACKED_STRIDE = range(2, 8)

# As for packing; a packed row is read up to 15 columns beyond its end. targets: int64 [n_rows], a column of each row.
# y: float64 [n_rows][PACKED_STATS]: the divergence, the base's likeliest column, the base's log p of the target.
PACKED_KL_FIELDS = (*PACK_FIELDS, "targets", "y")
TARGETS, PACKED_Y = range(8, 10)
PACKED_STATS = 3
DIVERGENCE, BASE_AT, BASE_TARGET = range(PACKED_STATS)

HEADER_BYTES = 8  # of a 16-bit row
LOWEST = 16.0  # below the largest; what is lower counts for nothing
_STEPS = 65535.0


@helper
def _run_kl(x, x_shift, base, base_shift, n):
    """Over n columns, in float32; the shifts are what log p is below the logit."""
    total, xs, bs = splat(0.0), splat(x_shift), splat(base_shift)
    for i in range(0, n, 16):
        log_base = keep_lanes(sub(vload(base + 4 * i), bs), 0, n - i, -math.inf)
        term = sub(log_base, sub(vload(x + 4 * i), xs))
        total = add(total, where_above(mul(exp(log_base), term), log_base, -87.0))
    return hsum(total)


@kernel
def kl_divergence(args, _thread, _n_threads):
    n_cols = arg(args, KL_N_COLS)
    while True:
        row = take(args, 1)
        if row >= n_rows(args):
            break
        x, x_stats = arg(args, KL_X) + row * arg(args, KL_X_STRIDE), arg(args, KL_X_STATS) + row * 8 * STATS
        base = arg(args, KL_BASE) + row * arg(args, KL_BASE_STRIDE)
        base_stats = arg(args, KL_BASE_STATS) + row * 8 * STATS
        x_shift = load_f64(x_stats + 8 * LARGEST) + load_f64(x_stats + 8 * LOG_SUM)
        base_shift = load_f64(base_stats + 8 * LARGEST) + load_f64(base_stats + 8 * LOG_SUM)
        total = 0.0
        for first in range(0, n_cols, RUN):
            n = min(RUN, n_cols - first)
            total += _run_kl(x + 4 * first, x_shift, base + 4 * first, base_shift, n)
        store_f64(arg(args, KL_Y) + 8 * row, total)


@helper
def _row_min(x, n_cols):
    """Smallest of a row."""
    smallest, whole = splat(-math.inf), n_cols // 16 * 16
    for i in range(0, whole, 16):
        smallest = vmax(smallest, sub(splat(0.0), vload(x + 4 * i)))
    for i in range(whole, n_cols, 16):
        smallest = vmax(smallest, keep_lanes(sub(splat(0.0), vload(x + 4 * i)), 0, n_cols - i, -math.inf))
    return -hmax(smallest)


@helper
def _pack_row(x, n_cols, low, scale, q):
    """Columns at or below `low` get 0."""
    inverse = 1.0 / scale if scale > 0.0 else 0.0
    for i in range(0, n_cols, 16):
        v = vload(x + 4 * i)
        steps = mul(splat(inverse), sub(v, splat(low)))
        vstore_u16(q + 2 * i, round_i32(where_above(steps, v, low)))


@kernel
def pack_log_probs(args, _thread, _n_threads):
    n_cols = arg(args, PACK_N_COLS)
    while True:
        row = take(args, 1)
        if row >= n_rows(args):
            break
        x, stats = arg(args, PACK_X) + row * arg(args, PACK_X_STRIDE), arg(args, PACK_X_STATS) + row * 8 * STATS
        packed = arg(args, PACKED) + row * arg(args, PACKED_STRIDE)
        largest = load_f64(stats + 8 * LARGEST)
        low = max(float(_row_min(x, n_cols)), largest - LOWEST)
        store_f32(packed, (largest - low) / _STEPS)
        store_f32(packed + 4, low - largest - load_f64(stats + 8 * LOG_SUM))
        _pack_row(x, n_cols, low, load_f32(packed), packed + HEADER_BYTES)


@helper
def _run_packed_kl(q, scale, low, x, x_shift, n):
    """As _run_kl, and the largest log p of the base."""
    total, largest, xs = splat(0.0), splat(-math.inf), splat(x_shift)
    for i in range(0, n, 16):
        log_base = keep_lanes(fma(vload_u16(q + 2 * i), splat(scale), splat(low)), 0, n - i, -math.inf)
        largest = vmax(largest, log_base)
        term = sub(log_base, sub(vload(x + 4 * i), xs))
        total = add(total, where_above(mul(exp(log_base), term), log_base, -LOWEST))
    return hsum(total), hmax(largest)


@helper
def _find(q, scale, low, value, first, n_cols):
    """The first column, from `first` on, whose log p is `value`."""
    for i in range(first, n_cols):
        if fma1(load_u16(q + 2 * i), scale, low) == value:
            return i
    return 0


@helper
def _packed_row(args, row, y):
    """The divergence of one row and the base's likeliest column, into y."""
    n_cols, stats = arg(args, PACK_N_COLS), arg(args, PACK_X_STATS) + row * 8 * STATS
    x, packed = arg(args, PACK_X) + row * arg(args, PACK_X_STRIDE), arg(args, PACKED) + row * arg(args, PACKED_STRIDE)
    scale, low, q = load_f32(packed), load_f32(packed + 4), packed + HEADER_BYTES
    x_shift = load_f64(stats + 8 * LARGEST) + load_f64(stats + 8 * LOG_SUM)
    total, largest, run = 0.0, -math.inf, 0
    for first in range(0, n_cols, RUN):
        n = min(RUN, n_cols - first)
        part, here = _run_packed_kl(q + 2 * first, scale, low, x + 4 * first, x_shift, n)
        total += part
        if here > largest:
            largest, run = here, first
    store_f64(y + 8 * DIVERGENCE, total)
    store_f64(y + 8 * BASE_AT, _find(q, scale, low, largest, run, n_cols))


@kernel
def packed_kl_divergence(args, _thread, _n_threads):
    while True:
        row = take(args, 1)
        if row >= n_rows(args):
            break
        y = arg(args, PACKED_Y) + row * 8 * PACKED_STATS
        _packed_row(args, row, y)
        packed = arg(args, PACKED) + row * arg(args, PACKED_STRIDE)
        target = arg(arg(args, TARGETS), row)
        log_p = fma1(load_u16(packed + HEADER_BYTES + 2 * target), load_f32(packed), load_f32(packed + 4))
        store_f64(y + 8 * BASE_TARGET, log_p)
