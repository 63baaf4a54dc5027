"""Mixture of experts: which experts a token takes, and slots: rows sorted by expert, so that each is read once a batch.

A slot is one row of one expert. An expert's slots start at a multiple of 8, as groups of activations do; what is left
of a group is empty. A token's own slots keep the order in which it chose its experts, best first: `combine` adds up in
that order, so nothing of a token's result depends on the batch.
"""

from __future__ import annotations

from llmkit.kernels.jit import helper, kernel, row_kernel
from llmkit.kernels.work import n_rows, take
from llmkit.simd.ops import (
    add,
    arg,
    bits_to_f32,
    copy_bytes,
    exp,
    fma,
    hmax,
    hsum,
    keep_lanes,
    load_f32,
    load_i64,
    mul,
    splat,
    store_f32,
    store_i64,
    sub,
    vload,
    vload_splat,
    vstore,
    zero_bytes,
)

NEG_INF = float("-inf")
SMALLEST_SUM = 6.103515625e-05  # of weights that are divided by their sum, as llama.cpp has it

# logits: float32 rows of n_expert values, filled up to 16 with anything; overwritten. picks: int64 [n_rows][n_used][3]:
# expert, weight (float32 bits, low half), slot. softmax: 1 all experts' logits before the choice, 0 the chosen ones'.
# normalise: 1 divides the chosen weights by their sum; scale: float32 bits.
ROUTE_FIELDS = ("logits", "stride", "n_expert", "n_used", "picks", "picks_stride", "softmax", "normalise", "scale")
LOGITS, STRIDE, N_EXPERT, N_USED, PICKS, PICKS_STRIDE, SOFTMAX, NORMALISE, SCALE = range(9)
PICK = 24  # bytes of a pick

# slots: int64: the number of slots, that of chosen experts; then for each expert its first slot and how many it has;
# then the chosen experts in order; rows: int64 [slots], a slot's row, -1 for an empty one.
SORT_FIELDS = ("counter", "n_rows", "picks", "picks_stride", "n_expert", "n_used", "slots", "rows")
SORT_PICKS, SORT_STRIDE, SORT_EXPERTS, SORT_USED, SLOTS, SLOT_ROWS = range(2, 8)
N_SLOTS, N_CHOSEN, EXPERTS = 0, 8, 16  # byte offsets in slots

# y: rows of slots, copied from the rows of x; empty ones are zero. n_bytes: of a row.
SPREAD_FIELDS = ("rows", "x", "x_stride", "y", "y_stride", "n_bytes")
SPREAD_ROWS, SPREAD_X, SPREAD_X_STRIDE, SPREAD_Y, SPREAD_Y_STRIDE, N_BYTES = range(6)

# y (+)= the weighted sum of a row's slots in x.
COMBINE_FIELDS = ("picks", "picks_stride", "n_used", "x", "x_stride", "y", "y_stride", "n_vectors", "accumulate")
COMBINE_PICKS, COMBINE_STRIDE, COMBINE_USED, X, X_STRIDE, Y, Y_STRIDE, N_VECTORS, ACCUMULATE = range(9)


def slots_bytes(n_expert: int) -> int:
    """Bytes of `slots`."""
    return EXPERTS + 8 * 3 * n_expert


# -- the choice -----------------------------------------------------------------------------------------------------


@helper
def _softmax(x, n):
    """x = e^(x - largest) / their sum, over n values; those up to the next multiple of 16 become 0."""
    largest = NEG_INF
    for i in range(0, n, 16):
        largest = max(largest, hmax(keep_lanes(vload(x + 4 * i), 0, n - i, NEG_INF)))
    total = splat(0.0)
    for i in range(0, n, 16):
        weights = keep_lanes(exp(sub(vload(x + 4 * i), splat(largest))), 0, n - i, 0.0)
        vstore(x + 4 * i, weights)
        total = add(total, weights)
    factor = splat(1.0 / hsum(total))
    for i in range(0, n, 16):
        vstore(x + 4 * i, mul(vload(x + 4 * i), factor))


@helper
def _best(x, n, picks, n_before):
    """The expert with the largest value that is not picked yet, the first of equals; some expert where all are NaN."""
    best = -1
    for expert in range(n):
        taken = False
        for i in range(n_before):
            taken = taken or load_i64(picks + PICK * i) == expert
        if not taken and (best < 0 or load_f32(x + 4 * expert) > load_f32(x + 4 * best)):
            best = expert
    return best


@helper
def _weigh(args, picks):
    """The picks' weights: softmaxed among themselves, divided by their sum, scaled, as asked."""
    n_used = arg(args, N_USED)
    if arg(args, SOFTMAX) == 0:
        largest, total = load_f32(picks + 8), 0.0
        for i in range(n_used):
            weight = hmax(exp(splat(load_f32(picks + PICK * i + 8) - largest)))
            store_f32(picks + PICK * i + 8, weight)
            total += weight
        for i in range(n_used):
            store_f32(picks + PICK * i + 8, load_f32(picks + PICK * i + 8) / total)
    if arg(args, NORMALISE) != 0:
        total = 0.0
        for i in range(n_used):
            total += load_f32(picks + PICK * i + 8)
        total = max(total, SMALLEST_SUM)
        for i in range(n_used):
            store_f32(picks + PICK * i + 8, load_f32(picks + PICK * i + 8) / total)
    for i in range(n_used):
        store_f32(picks + PICK * i + 8, load_f32(picks + PICK * i + 8) * bits_to_f32(arg(args, SCALE)))


@row_kernel
def route(args, first_row, last_row):
    n_expert = arg(args, N_EXPERT)
    for row in range(first_row, last_row):
        x = arg(args, LOGITS) + row * arg(args, STRIDE)
        picks = arg(args, PICKS) + row * arg(args, PICKS_STRIDE)
        if arg(args, SOFTMAX) != 0:
            _softmax(x, n_expert)
        for i in range(arg(args, N_USED)):
            expert = _best(x, n_expert, picks, i)
            store_i64(picks + PICK * i, expert)
            store_f32(picks + PICK * i + 8, load_f32(x + 4 * expert))
        _weigh(args, picks)


# -- slots ----------------------------------------------------------------------------------------------------------


@helper
def _count(args, experts):
    """How many rows each expert has."""
    zero_bytes(experts, 16 * arg(args, SORT_EXPERTS))
    for row in range(n_rows(args)):
        picks = arg(args, SORT_PICKS) + row * arg(args, SORT_STRIDE)
        for i in range(arg(args, SORT_USED)):
            at = experts + 16 * load_i64(picks + PICK * i) + 8
            store_i64(at, load_i64(at) + 1)


@helper
def _place(args, slots, experts):
    """Each expert's first slot, the chosen experts, and how many of both there are; all slots empty."""
    n_slots, n_chosen = 0, 0
    chosen = experts + 16 * arg(args, SORT_EXPERTS)
    for expert in range(arg(args, SORT_EXPERTS)):
        n = load_i64(experts + 16 * expert + 8)
        store_i64(experts + 16 * expert, n_slots)
        if n > 0:
            store_i64(chosen + 8 * n_chosen, expert)
            n_chosen += 1
            n_slots += (n + 7) // 8 * 8
    for slot in range(n_slots):
        store_i64(arg(args, SLOT_ROWS) + 8 * slot, -1)
    store_i64(slots + N_SLOTS, n_slots)
    store_i64(slots + N_CHOSEN, n_chosen)


@helper
def _fill(args, experts):
    """Rows into their experts' slots, in order of rows."""
    for row in range(n_rows(args)):
        picks = arg(args, SORT_PICKS) + row * arg(args, SORT_STRIDE)
        for i in range(arg(args, SORT_USED)):
            expert = experts + 16 * load_i64(picks + PICK * i)
            slot = load_i64(expert)
            store_i64(expert, slot + 1)
            store_i64(arg(args, SLOT_ROWS) + 8 * slot, row)
            store_i64(picks + PICK * i + 16, slot)
    for i in range(arg(args, SORT_EXPERTS)):
        expert = experts + 16 * i
        store_i64(expert, load_i64(expert) - load_i64(expert + 8))


@kernel
def sort(args, _thread, _n_threads):
    """One thread does it all: a few steps a row."""
    if take(args, 1) == 0:
        slots = arg(args, SLOTS)
        experts = slots + EXPERTS
        _count(args, experts)
        _place(args, slots, experts)
        _fill(args, experts)


@row_kernel
def spread(args, first_slot, last_slot):
    for slot in range(first_slot, last_slot):
        row = load_i64(arg(args, SPREAD_ROWS) + 8 * slot)
        y = arg(args, SPREAD_Y) + slot * arg(args, SPREAD_Y_STRIDE)
        if row < 0:
            zero_bytes(y, arg(args, N_BYTES))
        else:
            copy_bytes(y, arg(args, SPREAD_X) + row * arg(args, SPREAD_X_STRIDE), arg(args, N_BYTES))


@helper
def _sum_slots(args, picks, i):
    """16 columns of the weighted sum, in the order of the picks."""
    x, stride = arg(args, X) + 64 * i, arg(args, X_STRIDE)
    total = mul(vload_splat(picks + 8), vload(x + load_i64(picks + 16) * stride))
    for k in range(1, arg(args, COMBINE_USED)):
        at = picks + PICK * k
        total = fma(vload_splat(at + 8), vload(x + load_i64(at + 16) * stride), total)
    return total


@row_kernel
def combine(args, first_row, last_row):
    for row in range(first_row, last_row):
        picks = arg(args, COMBINE_PICKS) + row * arg(args, COMBINE_STRIDE)
        y = arg(args, Y) + row * arg(args, Y_STRIDE)
        for i in range(arg(args, N_VECTORS)):
            total = _sum_slots(args, picks, i)
            if arg(args, ACCUMULATE) != 0:
                total = add(vload(y + 64 * i), total)
            vstore(y + 64 * i, total)
