"""What attention knows of a query so far: a maximum, the sum of weights relative to it, the weighted sum of values.

A thread has three sets of them. PART: of the step's queries, in the span that is being done. TOTAL: of the unit's
queries, in all spans before. SAVED: of the unit's queries, in a span in which a later step goes on. Units of one span
leave theirs as partial results (m, l, o), which whoever does a row's last span merges in order.
"""

from __future__ import annotations

from llmkit.kernels.attention_memory import (
    GROUP,
    HADAMARD,
    HEAD_DIM,
    MAX_QUERIES,
    N_HEAD,
    N_HEAD_KV,
    N_ROT_V,
    NEG_INF,
    PARTIALS,
    ROW_DONE,
    ROW_ENDS,
    ROW_PARTIALS,
    SINKS,
    SPAN,
    V_DIM,
    Y_STRIDE,
    Y,
    state_at,
)
from llmkit.kernels.attention_scores import apply_sink
from llmkit.kernels.jit import helper
from llmkit.simd.ops import (
    arg,
    atomic_store,
    call_cells,
    copy_bytes,
    exp,
    fetch_add,
    fma,
    hmax,
    load_f32,
    load_i64,
    mul,
    splat,
    store_f32,
    sub,
    vload,
    vstore,
    zero_bytes,
)

PART, TOTAL, SAVED = range(3)


@helper
def clear(args, state, n):
    """n queries that have seen nothing, and those that fill up a group of four."""
    queries, n = arg(args, MAX_QUERIES), (n + GROUP - 1) // GROUP * GROUP
    zero_bytes(state + 4 * queries, 4 * n)
    zero_bytes(state + 8 * queries, 4 * n * arg(args, V_DIM))
    for i in range(n):
        store_f32(state + 4 * i, NEG_INF)


@helper
def copy_state(args, target, first_target, source, first_source, n):
    """n queries' state, the first_source-th on, to the first_target-th on."""
    sums, outputs, row = 4 * arg(args, MAX_QUERIES), 8 * arg(args, MAX_QUERIES), 4 * arg(args, V_DIM)
    copy_bytes(target + 4 * first_target, source + 4 * first_source, 4 * n)
    copy_bytes(target + sums + 4 * first_target, source + sums + 4 * first_source, 4 * n)
    copy_bytes(target + outputs + row * first_target, source + outputs + row * first_source, row * n)


@helper
def merge(m, l, o, part_m, part_l, part_o, v_dim):  # noqa: E741
    """Adds a span's maximum, sum and output to those of the spans before; one that saw nothing changes nothing."""
    sum_part, sum_before = load_f32(part_l), load_f32(l)
    if sum_part == 0.0:
        return
    if sum_before == 0.0:
        store_f32(m, load_f32(part_m))
        store_f32(l, sum_part)
        copy_bytes(o, part_o, 4 * v_dim)
        return
    largest = max(load_f32(m), load_f32(part_m))
    a = exp(sub(splat(load_f32(m)), splat(largest)))
    b = exp(sub(splat(load_f32(part_m)), splat(largest)))
    store_f32(l, hmax(fma(splat(sum_part), b, mul(splat(sum_before), a))))
    store_f32(m, largest)
    for d in range(0, v_dim, 16):
        vstore(o + 4 * d, fma(vload(part_o + 4 * d), b, mul(vload(o + 4 * d), a)))


@helper
def add_to_total(args, base, first, n):
    """Merges the span's state of n queries into that of the unit's queries first .. first + n."""
    v_dim, sums, outputs = arg(args, V_DIM), 4 * arg(args, MAX_QUERIES), 8 * arg(args, MAX_QUERIES)
    part, total = state_at(args, base, PART), state_at(args, base, TOTAL)
    for i in range(n):
        to, o = total + 4 * (first + i), total + outputs + 4 * (first + i) * v_dim
        at = part + 4 * i
        merge(to, to + sums, o, at, at + sums, part + outputs + 4 * i * v_dim, v_dim)


@helper
def finish(args, row, query_head, maximum, total, o):
    """y = o / sum, without the columns that fill v_dim up; where values were transformed, back again."""
    y = arg(args, Y) + row * arg(args, Y_STRIDE) + 4 * query_head * arg(args, HEAD_DIM)
    scale = 1.0 / load_f32(total)
    if arg(args, SINKS) != 0:
        scale = apply_sink(arg(args, SINKS), query_head, maximum, total)
    for d in range(arg(args, HEAD_DIM)):
        store_f32(y + 4 * d, load_f32(o + 4 * d) * scale)
    if arg(args, N_ROT_V) != 0:
        call_cells(arg(args, HADAMARD), y, arg(args, HEAD_DIM), arg(args, N_ROT_V), 0, 0)


@helper
def finish_total(args, rows, n_rows, head, base):
    """All spans of the unit's rows are done: the results go to y."""
    v_dim, heads, total = arg(args, V_DIM), arg(args, N_HEAD) // arg(args, N_HEAD_KV), state_at(args, base, TOTAL)
    sums, outputs = 4 * arg(args, MAX_QUERIES), 8 * arg(args, MAX_QUERIES)
    for r in range(n_rows):
        for h in range(heads):
            i = r * heads + h
            at = total + 4 * i
            finish(args, load_i64(rows + 8 * r), head * heads + h, at, at + sums, total + outputs + 4 * i * v_dim)


# -- partial results ----------------------------------------------------------------------------------------------


@helper
def n_spans_of(args, row):
    """How many spans a row has."""
    return (load_i64(arg(args, ROW_ENDS) + 8 * row) + SPAN - 1) // SPAN


@helper
def _partial(args, row, span, query_head):
    """Where (m, l, o) of a row, span and query head lies."""
    number = load_i64(arg(args, ROW_PARTIALS) + 8 * row) + span
    return load_i64(arg(args, PARTIALS)) + 4 * (number * arg(args, N_HEAD) + query_head) * (2 + arg(args, V_DIM))


@helper
def leave_partials(args, rows, n_rows, span, head, base):
    """The span's state of the step's queries becomes their partial results. Rows that end before the span have none."""
    v_dim, heads, part = arg(args, V_DIM), arg(args, N_HEAD) // arg(args, N_HEAD_KV), state_at(args, base, PART)
    sums, outputs = 4 * arg(args, MAX_QUERIES), 8 * arg(args, MAX_QUERIES)
    for r in range(n_rows):
        row = load_i64(rows + 8 * r)
        if span < n_spans_of(args, row):
            for h in range(heads):
                i = r * heads + h
                out, total = _partial(args, row, span, head * heads + h), load_f32(part + sums + 4 * i)
                store_f32(out, load_f32(part + 4 * i))
                store_f32(out + 4, total)
                if total != 0.0:
                    copy_bytes(out + 8, part + outputs + 4 * i * v_dim, 4 * v_dim)


@helper
def leave_nothing(args, rows, n_rows, span, head):
    """As leave_partials, where no row sees anything of the span."""
    heads = arg(args, N_HEAD) // arg(args, N_HEAD_KV)
    for r in range(n_rows):
        row = load_i64(rows + 8 * r)
        if span < n_spans_of(args, row):
            for h in range(heads):
                store_f32(_partial(args, row, span, head * heads + h) + 4, 0.0)


@helper
def _merge_partials(args, row, head, base):
    """Merges the partial results of a row, span after span, into y."""
    v_dim, heads, total = arg(args, V_DIM), arg(args, N_HEAD) // arg(args, N_HEAD_KV), state_at(args, base, TOTAL)
    for query_head in range(head * heads, (head + 1) * heads):
        store_f32(total, NEG_INF)
        store_f32(total + 4, 0.0)
        for span in range(n_spans_of(args, row)):
            part = _partial(args, row, span, query_head)
            merge(total, total + 4, total + 8, part, part + 4, part + 8, v_dim)
        finish(args, row, query_head, total, total + 4, total + 8)


@helper
def count_span(args, rows, n_rows, span, head, base):
    """The unit's partial results are there. Merges those of rows of which this was the last span to be done."""
    for r in range(n_rows):
        row = load_i64(rows + 8 * r)
        n = n_spans_of(args, row)
        if span < n:
            done = load_i64(arg(args, ROW_DONE)) + 8 * (row * arg(args, N_HEAD_KV) + head)
            if fetch_add(done, 1) == n - 1:
                atomic_store(done, 0)
                _merge_partials(args, row, head, base)
