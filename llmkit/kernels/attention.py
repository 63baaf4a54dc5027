"""Attention over blocks of cells, with online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867; FlashAttention).

A sequence is walked in tiles of 32 tokens counted from its first, wherever they lie, and in spans of 256: within a span
tile after tile, then span after span (`merge`). Both are fixed by the tokens' order alone, so a query's bits depend
neither on what is computed beside it nor on whether one thread takes all spans or several threads one each.
"""

from __future__ import annotations

from llmkit.kernels.attention_memory import (
    CAP,
    DONE,
    FIELDS,
    FIRST_ROW,
    FIRST_VISIBLE,
    GROUP,
    GROUP_ROW,
    GROUP_ROWS,
    HADAMARD,
    HEAD_DIM,
    INDEX,
    KIND,
    MAX_QUERIES,
    N_HEAD,
    N_HEAD_KV,
    N_ROT_V,
    N_SPANS,
    N_UNITS,
    NEG_INF,
    PARTIAL,
    PARTIALS,
    POSITIONS,
    Q_STRIDE,
    SCALE,
    SCRATCH,
    SCRATCH_BYTES,
    SINKS,
    SLOPES,
    SPAN,
    TILE,
    UNIT,
    UNIT_CELLS,
    UNIT_COUNT,
    UNIT_FIELDS,
    UNIT_ROWS,
    UNIT_SPAN,
    UNITS,
    V_DIM,
    Y_STRIDE,
    Q,
    Y,
    load_tile,
    prefetch_tile,
    scores_at,
    scratch_bytes,
    state_at,
)
from llmkit.kernels.attention_scores import add_distance, apply_sink, cap_scores, put_distances
from llmkit.kernels.attention_tile import add_values_1, add_values_4, score_tile
from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.softmax_tile import softmax_part, softmax_whole
from llmkit.kernels.work import take
from llmkit.simd.ops import (
    arg,
    atomic_store,
    bits_to_f32,
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
    store_i64,
    sub,
    vload,
    vload_splat,
    vstore,
    zero_bytes,
)

__all__ = ["FIELDS", "SPAN", "UNIT", "UNIT_FIELDS", "attention", "scratch_bytes"]

# -- queries against a tile ---------------------------------------------------------------------------------------


@helper
def _load_queries(args, unit, head, base):
    """Scaled queries of all rows and heads of the group as float32 [query / 4][dim][4]; missing ones are zero."""
    head_dim, heads = arg(args, HEAD_DIM), arg(args, N_HEAD) // arg(args, N_HEAD_KV)
    n, scale = arg(unit, UNIT_ROWS) * heads, load_f32(args + 8 * SCALE)
    zero_bytes(base, 4 * (n + 3) // 4 * 4 * head_dim)
    for i in range(n):
        q = arg(args, Q) + (arg(unit, FIRST_ROW) + i // heads) * arg(args, Q_STRIDE)
        q += 4 * (head * heads + i % heads) * head_dim
        target = base + 4 * ((i >> 2) * head_dim * GROUP + (i & 3))
        for d in range(head_dim):
            store_f32(target + 4 * GROUP * d, load_f32(q + 4 * d) * scale)
    return n


@helper
def _first_visible(args, row):
    """The first token of its sequence that this row sees."""
    firsts = arg(args, FIRST_VISIBLE)
    if firsts == 0:
        return 0
    return load_i64(firsts + 8 * row)


@helper
def _set_limits(args, unit, quad, n, first, limits):
    """What each of four queries sees of the tile, to int64 limits[4][2]; whether all see all of it."""
    heads = arg(args, N_HEAD) // arg(args, N_HEAD_KV)
    whole = True
    for i in range(GROUP):
        row = min(GROUP * quad + i, n - 1) // heads  # those beyond the last are computed with it and never read
        low = max(0, _first_visible(args, arg(unit, FIRST_ROW) + row) - first)
        high = max(0, min(TILE, arg(unit, INDEX) + row + 1 - first))
        store_i64(limits + 16 * i, low)
        store_i64(limits + 16 * i + 8, high)
        whole = whole and low == 0 and high == TILE
    return whole


@helper
def _shrink(factors, out, v_dim):
    """Multiplies the outputs of four queries by their factors."""
    for i in range(GROUP):
        if load_f32(factors + 4 * i) != 1.0:
            factor = vload_splat(factors + 4 * i)
            for d in range(0, v_dim, 16):
                at = out + 4 * (i * v_dim + d)
                vstore(at, mul(vload(at), factor))


@helper
def _change_scores(args, unit, head, quad, n, first, scores):
    """Caps the scores of four queries on the tile that starts at token `first`, and adds what distance costs."""
    heads, slopes = arg(args, N_HEAD) // arg(args, N_HEAD_KV), arg(args, SLOPES)
    if arg(args, CAP) != 0:
        cap_scores(scores, 2 * GROUP, bits_to_f32(arg(args, CAP)))
    if slopes != 0:
        for i in range(GROUP):
            query = min(GROUP * quad + i, n - 1)
            positions = arg(unit, POSITIONS)
            distance = load_i64(positions + 8 * (arg(unit, INDEX) + query // heads)) - load_i64(positions + 8 * first)
            at = scores + 4 * GROUP * TILE + 128
            add_distance(scores + 4 * TILE * i, slopes, head * heads + query % heads, at, distance)


@helper
def _attend_group(args, unit, head, base, quad, n, first, k, v):
    """Four queries (n in all) against the tile that starts at token `first`."""
    v_dim, queries = arg(args, V_DIM), arg(args, MAX_QUERIES)
    scores, state = scores_at(args, base), state_at(args, base, 0)
    factors, limits = scores + 4 * GROUP * TILE, scores + 4 * GROUP * TILE + 64
    maxima = state + 4 * GROUP * quad
    sums, out = maxima + 4 * queries, state + 8 * queries + 4 * GROUP * quad * v_dim
    score_tile(base + 4 * GROUP * quad * arg(args, HEAD_DIM), k, arg(args, HEAD_DIM), scores)
    if arg(args, CAP) + arg(args, SLOPES) != 0:
        _change_scores(args, unit, head, quad, n, first, scores)
    if _set_limits(args, unit, quad, n, first, limits):
        if softmax_whole(scores, maxima, sums, factors):
            _shrink(factors, out, v_dim)
        add_values_4(scores, v, v_dim, out)
        return
    if softmax_part(scores, maxima, sums, factors, limits):
        _shrink(factors, out, v_dim)
    for i in range(GROUP):
        low, high = load_i64(limits + 16 * i), load_i64(limits + 16 * i + 8)
        if low < high:
            add_values_1(scores + 128 * i + 4 * low, v + 4 * low * v_dim, v_dim, out + 4 * i * v_dim, high - low)


# -- spans --------------------------------------------------------------------------------------------------------


@helper
def _clear(args, state):
    queries = arg(args, MAX_QUERIES)
    zero_bytes(state + 4 * queries, 4 * queries * (1 + arg(args, V_DIM)))
    for i in range(queries):
        store_f32(state + 4 * i, NEG_INF)


@helper
def _attend_span(args, unit, head, base, n, span):
    """All queries of the unit against one span, into the span's state."""
    last, cells = arg(unit, INDEX) + arg(unit, UNIT_ROWS) - 1, arg(unit, UNIT_CELLS + arg(args, KIND))
    start = max(span * SPAN, _first_visible(args, arg(unit, FIRST_ROW)) // TILE * TILE)
    for first in range(start, min(span * SPAN + SPAN, last + 1), TILE):
        n_cells = min(TILE, last + 1 - first)
        k, v = load_tile(args, base, cells + 8 * first, n_cells, head)
        if first + TILE <= last:
            prefetch_tile(args, cells + 8 * (first + TILE), head)
        if arg(args, SLOPES) != 0:
            put_distances(arg(unit, POSITIONS) + 8 * first, n_cells, scores_at(args, base) + 4 * GROUP * TILE + 128)
        for quad in range((n + GROUP - 1) // GROUP):
            _attend_group(args, unit, head, base, quad, n, first, k, v)


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
def _finish(args, row, query_head, maximum, total, o):
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
def _attend_all(args, unit, head, base):
    """A unit with all its spans: the results go to y."""
    v_dim, queries = arg(args, V_DIM), arg(args, MAX_QUERIES)
    heads = arg(args, N_HEAD) // arg(args, N_HEAD_KV)
    n = _load_queries(args, unit, head, base)
    part, total = state_at(args, base, 0), state_at(args, base, 1)
    _clear(args, total)
    first = _first_visible(args, arg(unit, FIRST_ROW)) // SPAN
    for span in range(first, (arg(unit, INDEX) + arg(unit, UNIT_ROWS) - 1) // SPAN + 1):
        _clear(args, part)
        _attend_span(args, unit, head, base, n, span)
        for i in range(n):
            at, o = 4 * i, 8 * queries + 4 * i * v_dim
            sums = at + 4 * queries
            merge(total + at, total + sums, total + o, part + at, part + sums, part + o, v_dim)
    for i in range(n):
        o = total + 8 * queries + 4 * i * v_dim
        row = arg(unit, FIRST_ROW) + i // heads
        _finish(args, row, head * heads + i % heads, total + 4 * i, total + 4 * queries + 4 * i, o)


@helper
def _partial(args, unit, row, span, head):
    """Where (m, l, o) of a row of the unit's group, span and query head lies."""
    number = arg(unit, PARTIAL) + row * arg(unit, N_SPANS) + span
    return load_i64(arg(args, PARTIALS)) + 4 * (number * arg(args, N_HEAD) + head) * (2 + arg(args, V_DIM))


@helper
def _attend_one_span(args, unit, head, base):
    """A unit with one span: the state of each query goes to the partial results."""
    v_dim, queries = arg(args, V_DIM), arg(args, MAX_QUERIES)
    heads = arg(args, N_HEAD) // arg(args, N_HEAD_KV)
    n = _load_queries(args, unit, head, base)
    state = state_at(args, base, 0)
    _clear(args, state)
    _attend_span(args, unit, head, base, n, arg(unit, UNIT_SPAN))
    for i in range(n):
        row = arg(unit, FIRST_ROW) - arg(unit, GROUP_ROW) + i // heads
        out = _partial(args, unit, row, arg(unit, UNIT_SPAN), head * heads + i % heads)
        store_f32(out, load_f32(state + 4 * i))
        store_f32(out + 4, load_f32(state + 4 * (queries + i)))
        copy_bytes(out + 8, state + 8 * queries + 4 * i * v_dim, 4 * v_dim)


@helper
def _merge_spans(args, unit, head, base):
    """Merges the partial results of the rows of a unit's group, span after span, into y."""
    v_dim, heads, total = arg(args, V_DIM), arg(args, N_HEAD) // arg(args, N_HEAD_KV), state_at(args, base, 1)
    for i in range(arg(unit, GROUP_ROWS) * heads):
        row, query_head = i // heads, head * heads + i % heads
        store_f32(total, NEG_INF)
        store_f32(total + 4, 0.0)
        for span in range(arg(unit, N_SPANS)):
            part = _partial(args, unit, row, span, query_head)
            merge(total, total + 4, total + 8, part, part + 4, part + 8, v_dim)
        _finish(args, arg(unit, GROUP_ROW) + row, query_head, total, total + 4, total + 8)


@kernel
def attention(args, thread, _n_threads):
    """An item is a unit and a KV head."""
    n_head_kv, n_units = arg(args, N_HEAD_KV), load_i64(arg(args, UNIT_COUNT))
    base, units = arg(args, SCRATCH) + thread * arg(args, SCRATCH_BYTES), load_i64(arg(args, UNITS))
    while True:
        item = take(args, 1)
        if item >= n_units * n_head_kv:
            break
        unit = units + 8 * UNIT * (item // n_head_kv)
        if arg(unit, UNIT_SPAN) < 0:
            _attend_all(args, unit, item % n_head_kv, base)
        else:
            _attend_one_span(args, unit, item % n_head_kv, base)
            done = arg(unit, DONE) + 8 * (item % n_head_kv)
            if fetch_add(done, 1) == arg(unit, N_UNITS) - 1:  # the last of the group's units merges them all
                atomic_store(done, 0)
                _merge_spans(args, unit, item % n_head_kv, base)
