"""What log-softmax needs to know of rows of logits: the largest, where it is, and the log of the sum of exponentials.

log p(i) = x(i) - largest - log(sum(exp(x - largest))). Sums are taken over runs of 1,024 columns, in float32 lanes with
a tree at the end of a run, and float64 across runs: the same bits for any thread and instruction set.
"""

from __future__ import annotations

import math

from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.work import n_rows, take
from llmkit.simd.ops import (
    add,
    arg,
    exp,
    hmax,
    hsum,
    keep_lanes,
    load_f32,
    splat,
    store_f64,
    sub,
    vload,
    vmax,
)

# x: float32 rows, x_stride bytes apart; a row may be read up to the next multiple of 16 columns, what is there counts
# for nothing. y: float64 [n_rows][STATS]: largest, its first column, log of the sum.
FIELDS = ("counter", "n_rows", "x", "x_stride", "n_cols", "y")
X, X_STRIDE, N_COLS, Y = range(2, 6)
STATS = 3
LARGEST, AT, LOG_SUM = range(STATS)

RUN = 1024  # columns summed in float32
_LN2_HIGH, _LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # their sum is ln 2 to 90 bits
_SQRT_HALF = 0.70710678118654752440


@helper
def log_f64(x):
    """Natural logarithm of a positive finite float64: x = m 2^e, log m = 2 atanh((m - 1) / (m + 1)) as a series.

    m lies within sqrt(1/2) .. sqrt(2), so the terms up to s^23 leave less than 1e-19. Not the C library's, whose bits
    differ between machines.
    """
    m, e = math.frexp(x)
    if m < _SQRT_HALF:
        m, e = 2.0 * m, e - 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = 1.0 / 23.0
    for k in range(21, 0, -2):
        series = series * z + 1.0 / k
    return e * _LN2_HIGH + (2.0 * s * series + e * _LN2_LOW)


@helper
def run_max(x, n):
    """Largest of n float32."""
    a, b = splat(-math.inf), splat(-math.inf)
    whole = n // 32 * 32
    for i in range(0, whole, 32):
        a = vmax(a, vload(x + 4 * i))
        b = vmax(b, vload(x + 4 * i + 64))
    for i in range(whole, n, 16):
        a = vmax(a, keep_lanes(vload(x + 4 * i), 0, n - i, -math.inf))
    return hmax(vmax(a, b))


@helper
def _run_sum(x, n, largest):
    """Sum of exp(x - largest) over n float32, in float32."""
    a, b, shift = splat(0.0), splat(0.0), splat(largest)
    whole = n // 32 * 32
    for i in range(0, whole, 32):
        a = add(a, exp(sub(vload(x + 4 * i), shift)))
        b = add(b, exp(sub(vload(x + 4 * i + 64), shift)))
    for i in range(whole, n, 16):
        a = add(a, exp(sub(keep_lanes(vload(x + 4 * i), 0, n - i, -math.inf), shift)))
    return hsum(add(a, b))


@helper
def row_max(x, n_cols):
    """The largest of a row, and the first column that holds it (-1 if the row holds NaN)."""
    largest, run = -math.inf, 0
    for first in range(0, n_cols, RUN):
        here = run_max(x + 4 * first, min(RUN, n_cols - first))
        if here != here:
            return here, -1
        if here > largest:
            largest, run = here, first
    for i in range(run, n_cols):
        if load_f32(x + 4 * i) == largest:
            return largest, i
    return largest, 0


@helper
def log_sum(x, n_cols, largest):
    """log(sum(exp(x - largest))) of a row, float64."""
    total = 0.0
    for first in range(0, n_cols, RUN):
        total += _run_sum(x + 4 * first, min(RUN, n_cols - first), largest)
    return log_f64(total) if total > 0.0 else math.nan


@kernel
def log_softmax(args, _thread, _n_threads):
    n_cols = arg(args, N_COLS)
    while True:
        row = take(args, 1)
        if row >= n_rows(args):
            break
        x, y = arg(args, X) + row * arg(args, X_STRIDE), arg(args, Y) + row * 8 * STATS
        largest, at = row_max(x, n_cols)
        store_f64(y + 8 * LARGEST, largest)
        store_f64(y + 8 * AT, at)
        store_f64(y + 8 * LOG_SUM, log_sum(x, n_cols, largest))
