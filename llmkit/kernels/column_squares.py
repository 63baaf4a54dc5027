"""Sums of the squares of columns, over all rows that a matmul reads, or over those of each expert.

Each column is summed by one thread, rows in order, in float64: the same bits for any number of threads.
"""

from __future__ import annotations

from llmkit.kernels.experts import EXPERTS, N_CHOSEN
from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.work import n_rows, take
from llmkit.simd.ops import arg, fma_f64, load_f32, load_f64, load_i64, store_f64, store_i64

# x: float32 rows, x_stride bytes apart; sums: float64 [experts][n_cols] and counts: int64 [experts], both added to.
# slots: as in `experts`, where the rows are those of slots; else 0, and there is one matrix for all rows.
FIELDS = ("counter", "n_rows", "x", "x_stride", "n_cols", "sums", "counts", "slots", "n_expert")
X, X_STRIDE, N_COLS, SUMS, COUNTS, SLOTS, N_EXPERT = range(2, 9)

_RUN = 16  # columns of an item: a cache line of each row


@helper
def _add_columns(args, expert, first_row, n, first, last):
    """Adds the squares of columns first .. last - 1 of n rows to an expert's sums."""
    x, stride = arg(args, X) + first_row * arg(args, X_STRIDE), arg(args, X_STRIDE)
    sums = arg(args, SUMS) + 8 * expert * arg(args, N_COLS)
    for column in range(first, last):
        total = load_f64(sums + 8 * column)
        for row in range(n):
            value = load_f32(x + row * stride + 4 * column) * 1.0
            total = fma_f64(value, value, total)
        store_f64(sums + 8 * column, total)


@helper
def _expert_of(args, item):
    """The expert that comes `item`-th, 0 without experts."""
    if arg(args, SLOTS) == 0:
        return 0
    return load_i64(arg(args, SLOTS) + EXPERTS + 16 * arg(args, N_EXPERT) + 8 * item)


@kernel
def column_squares(args, _thread, _n_threads):
    """An item is a run of columns of one expert's rows."""
    slots, n_cols = arg(args, SLOTS), arg(args, N_COLS)
    n_chosen = 1
    if slots != 0:
        n_chosen = load_i64(slots + N_CHOSEN)
    runs = (n_cols + _RUN - 1) // _RUN
    while True:
        item = take(args, 1)
        if item >= n_chosen * runs:
            break
        expert, first = _expert_of(args, item // runs), item % runs * _RUN
        first_row, n = 0, n_rows(args)
        if slots != 0:
            at = slots + EXPERTS + 16 * expert
            first_row, n = load_i64(at), load_i64(at + 8)
        _add_columns(args, expert, first_row, n, first, min(first + _RUN, n_cols))
        if first == 0:
            count = arg(args, COUNTS) + 8 * expert
            store_i64(count, load_i64(count) + n)
