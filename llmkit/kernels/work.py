"""How the threads of a team share an operation: they take items from a counter until none is left."""

from __future__ import annotations

from llmkit.kernels.jit import helper
from llmkit.simd.ops import arg, fetch_add, load_i64

# Every argument block starts with these two: the address of the operation's counter, and of the number of its rows.
COUNTER, N_ROWS = 0, 1

MAX_PARTS = 8  # counters of an operation, on one cache line


@helper
def n_rows(args):
    """Rows (tokens, or rows of logits) of this run."""
    return load_i64(arg(args, N_ROWS))


@helper
def take(args, n):
    """The first of the next `n` items."""
    return fetch_add(arg(args, COUNTER), n)


@helper
def run_length(items, n_threads):
    """Items that a thread takes at once: few, so that threads finish together; many, so that counting is cheap."""
    return max(1, items // (16 * n_threads))


@helper
def take_part(args, part, n):
    """The first of the next `n` items of a part 0 .. MAX_PARTS - 1 of the work, which has a counter of its own."""
    return fetch_add(arg(args, COUNTER) + 8 * part, n)
