"""Operations on rows one after the other, each row by one thread from the first to the last: no thread waits between.

A token's norm and the 8-bit codes made of it, or a gate and its codes, need nothing of other rows. While a single token
is computed, meeting costs more than such an operation itself.
"""

from __future__ import annotations

from llmkit.kernels.jit import kernel
from llmkit.kernels.work import n_rows, take
from llmkit.simd.ops import arg, call_kernel, load_i64

# steps: address of int64 [n_steps][2], a row kernel's address and its argument block's. slot_rows: of an expert's slots
# (see experts) int64 [n_rows], below 0 for those that are empty and passed over, which end a group of 8; else 0.
FIELDS = ("counter", "n_rows", "n_steps", "steps", "slot_rows")
N_STEPS, STEPS, SLOT_ROWS = 2, 3, 4

_GROUP = 8  # rows whose activations share cache lines


@kernel
def chain(args, _thread, n_threads):
    """Threads take groups of 8 rows, or single rows while there are few."""
    rows, steps = n_rows(args), arg(args, STEPS)
    run = _GROUP if rows > _GROUP * n_threads else 1
    while True:
        first = run * take(args, 1)
        if first >= rows:
            break
        last = min(first + run, rows)
        if arg(args, SLOT_ROWS) != 0:
            while last > first and load_i64(arg(args, SLOT_ROWS) + 8 * (last - 1)) < 0:
                last -= 1
            if last == first:
                continue
        for i in range(arg(args, N_STEPS)):
            call_kernel(arg(steps, 2 * i), arg(steps, 2 * i + 1), first, last)
