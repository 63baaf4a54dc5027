"""Attention over blocks of cells, with online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867; FlashAttention).

A sequence is walked in tiles of 32 tokens counted from its first, wherever they lie, and in spans of 256: within a span
tile after tile, then span after span (`merge`). Both are fixed by positions alone, so a query's bits depend neither on
what is computed beside it nor on whether one thread takes all spans or several threads one each.
"""

from __future__ import annotations

from llmkit.kernels.attention_tile import add_values_1, add_values_4, score_tile
from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.softmax_tile import softmax_part, softmax_whole
from llmkit.kernels.work import take
from llmkit.simd.ops import (
    arg,
    atomic_store,
    copy_bytes,
    exp,
    f16_bits_to_f32,
    fetch_add,
    fma,
    hmax,
    load_f32,
    load_i64,
    load_u16,
    mul,
    splat,
    store_f32,
    store_i64,
    sub,
    vload,
    vload_f16,
    vload_splat,
    vstore,
    zero_bytes,
)

TILE, SPAN, GROUP = 32, 256, 4
NEG_INF = float("-inf")

# q, y: float32 rows. units: address of the address of int64 [n_units][UNIT]; unit_count: address of their number.
# scratch: scratch_bytes a thread. window: tokens a query sees, itself included; 0 is all.
# partials: address of the address where units of one span leave (m, l, o) of each row and head.
FIELDS = (
    "counter",
    "n_rows",
    "q",
    "q_stride",
    "y",
    "y_stride",
    "n_head",
    "n_head_kv",
    "head_dim",
    "v_dim",
    "scale",
    "window",
    "k_offset",
    "v_offset",
    "k_type",
    "v_type",
    "units",
    "unit_count",
    "block_addresses",
    "scratch",
    "scratch_bytes",
    "max_queries",
    "partials",
)
(
    Q,
    Q_STRIDE,
    Y,
    Y_STRIDE,
    N_HEAD,
    N_HEAD_KV,
    HEAD_DIM,
    V_DIM,
    SCALE,
    WINDOW,
    K_OFFSET,
    V_OFFSET,
    K_TYPE,
    V_TYPE,
    UNITS,
    UNIT_COUNT,
    BLOCK_ADDRESSES,
    SCRATCH,
    SCRATCH_BYTES,
    MAX_QUERIES,
    PARTIALS,
) = range(2, 23)

# A unit of work: rows first_row .. first_row + n_rows of one sequence, the first at position pos; cells: address of the
# sequence's int64 cells (block number * 32 + cell); span: the only span to do, or -1 for all;
# partial: with a span, number of its first row's partial result (one a row and span, all heads); done: address of
# int64 [n_head_kv], how many of the n_spans units with these rows are finished.
UNIT_FIELDS = ("first_row", "n_rows", "pos", "cells", "span", "partial", "n_spans", "done")
FIRST_ROW, UNIT_ROWS, POS, UNIT_CELLS, UNIT_SPAN, PARTIAL, N_SPANS, DONE = range(8)
UNIT = 8


def scratch_bytes(max_queries: int, head_dim: int, v_dim: int) -> int:
    """Bytes a thread needs: q, K and V of a tile, scores, maxima and sums, two sets of outputs."""
    n = max_queries * (head_dim + 2 * v_dim + 4) + TILE * (head_dim + v_dim) + GROUP * TILE
    return (4 * n + _STEP_BYTES + 4095) // 4096 * 4096


_STEP_BYTES = 128  # four factors, four pairs of limits

# -- scratch of a thread, in this order ---------------------------------------------------------------------------


@helper
def _k_tile(args, base):
    return base + 4 * arg(args, MAX_QUERIES) * arg(args, HEAD_DIM)


@helper
def _v_tile(args, base):
    return _k_tile(args, base) + 4 * TILE * arg(args, HEAD_DIM)


@helper
def _scores(args, base):
    return _v_tile(args, base) + 4 * TILE * arg(args, V_DIM)


@helper
def _state(args, base, total):
    """Maxima, then sums, then outputs of all queries; of the span (total 0) or of all spans so far (1)."""
    queries = arg(args, MAX_QUERIES)
    return _scores(args, base) + 4 * GROUP * TILE + _STEP_BYTES + 4 * total * queries * (2 + arg(args, V_DIM))


# -- a tile of K and V as float32 ---------------------------------------------------------------------------------


@helper
def _copy_values(source, kind, target, n):
    """n values (a multiple of 16) as float32."""
    if kind == 0:
        copy_bytes(target, source, 4 * n)
    else:
        for i in range(0, n, 16):
            vstore(target + 4 * i, vload_f16(source + 2 * i))


@helper
def _load_value(source, kind, index):
    if kind == 0:
        return load_f32(source + 4 * index)
    return f16_bits_to_f32(load_u16(source + 2 * index))


@helper
def _gather_k(args, k, tile, cell, t):
    """One cell's K into column t of the tile."""
    for d in range(arg(args, HEAD_DIM)):
        store_f32(tile + 4 * (TILE * d + t), _load_value(k, arg(args, K_TYPE), TILE * d + cell))


@helper
def _is_whole(cells, n):
    """Whether the n cells are the first n of one block, in order."""
    first = load_i64(cells)
    if first & (TILE - 1):
        return False
    for t in range(1, n):  # noqa: SIM110
        if load_i64(cells + 8 * t) != first + t:
            return False
    return True


@helper
def _head_addresses(args, block, head):
    """K and V of a head in the block with this number."""
    address = load_i64(arg(args, BLOCK_ADDRESSES) + 8 * block)
    k_bytes, v_bytes = 4 - 2 * arg(args, K_TYPE), 4 - 2 * arg(args, V_TYPE)
    k = address + arg(args, K_OFFSET) + head * TILE * arg(args, HEAD_DIM) * k_bytes
    return k, address + arg(args, V_OFFSET) + head * TILE * arg(args, V_DIM) * v_bytes


@helper
def _load_tile(args, base, cells, n, head):
    """n cells' K and V as float32; the addresses of both. Columns of K from n on hold anything."""
    v_dim, v_type = arg(args, V_DIM), arg(args, V_TYPE)
    k_tile, v_tile = _k_tile(args, base), _v_tile(args, base)
    if _is_whole(cells, n):
        k, v = _head_addresses(args, load_i64(cells) >> 5, head)
        if arg(args, K_TYPE) == 0:
            k_tile = k
        else:
            _copy_values(k, 1, k_tile, TILE * arg(args, HEAD_DIM))
        if v_type == 0:
            v_tile = v
        else:
            _copy_values(v, 1, v_tile, n * v_dim)
    else:
        for t in range(n):
            cell = load_i64(cells + 8 * t)
            k, v = _head_addresses(args, cell >> 5, head)
            _gather_k(args, k, k_tile, cell & 31, t)
            _copy_values(v + (cell & 31) * v_dim * (4 - 2 * v_type), v_type, v_tile + 4 * t * v_dim, v_dim)
    return k_tile, v_tile


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
def _visible(pos, first, window):
    """Which cells low <= t < high of the tile that starts at `first` the query at `pos` sees."""
    low = 0
    if window > 0:
        low = max(0, pos - window + 1 - first)
    return low, max(0, min(TILE, pos + 1 - first))


@helper
def _set_limits(args, unit, quad, n, first, limits):
    """What each of four queries sees of the tile, to int64 limits[4][2]; whether all see all of it."""
    heads, window = arg(args, N_HEAD) // arg(args, N_HEAD_KV), arg(args, WINDOW)
    whole = True
    for i in range(GROUP):
        query = min(GROUP * quad + i, n - 1)  # those beyond the last are computed with it and never read
        low, high = _visible(arg(unit, POS) + query // heads, first, window)
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
def _attend_group(args, unit, base, quad, n, first, k, v):
    """Four queries (n in all) against the tile that starts at position `first`."""
    v_dim, queries = arg(args, V_DIM), arg(args, MAX_QUERIES)
    scores, state = _scores(args, base), _state(args, base, 0)
    factors, limits = scores + 4 * GROUP * TILE, scores + 4 * GROUP * TILE + 64
    maxima = state + 4 * GROUP * quad
    sums, out = maxima + 4 * queries, state + 8 * queries + 4 * GROUP * quad * v_dim
    score_tile(base + 4 * GROUP * quad * arg(args, HEAD_DIM), k, arg(args, HEAD_DIM), scores)
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
    last = arg(unit, POS) + arg(unit, UNIT_ROWS) - 1
    start, window = span * SPAN, arg(args, WINDOW)
    if window > 0:
        start = max(start, (arg(unit, POS) - window + 1) // TILE * TILE)
    for first in range(start, min(span * SPAN + SPAN, last + 1), TILE):
        k, v = _load_tile(args, base, arg(unit, UNIT_CELLS) + 8 * first, min(TILE, last + 1 - first), head)
        for quad in range((n + GROUP - 1) // GROUP):
            _attend_group(args, unit, base, quad, n, first, k, v)


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
def _finish(args, row, query_head, total, o):
    """y = o / sum, without the columns that fill v_dim up."""
    y = arg(args, Y) + row * arg(args, Y_STRIDE) + 4 * query_head * arg(args, HEAD_DIM)
    scale = 1.0 / load_f32(total)
    for d in range(arg(args, HEAD_DIM)):
        store_f32(y + 4 * d, load_f32(o + 4 * d) * scale)


@helper
def _attend_all(args, unit, head, base):
    """A unit with all its spans: the results go to y."""
    v_dim, queries = arg(args, V_DIM), arg(args, MAX_QUERIES)
    heads = arg(args, N_HEAD) // arg(args, N_HEAD_KV)
    n = _load_queries(args, unit, head, base)
    part, total = _state(args, base, 0), _state(args, base, 1)
    _clear(args, total)
    first = 0
    if arg(args, WINDOW) > 0:
        first = max(0, (arg(unit, POS) - arg(args, WINDOW) + 1) // SPAN)
    for span in range(first, (arg(unit, POS) + arg(unit, UNIT_ROWS) - 1) // SPAN + 1):
        _clear(args, part)
        _attend_span(args, unit, head, base, n, span)
        for i in range(n):
            at, o = 4 * i, 8 * queries + 4 * i * v_dim
            sums = at + 4 * queries
            merge(total + at, total + sums, total + o, part + at, part + sums, part + o, v_dim)
    for i in range(n):
        o = total + 8 * queries + 4 * i * v_dim
        row = arg(unit, FIRST_ROW) + i // heads
        _finish(args, row, head * heads + i % heads, total + 4 * queries + 4 * i, o)


@helper
def _partial(args, unit, row, span, head):
    """Where (m, l, o) of a row, span and query head lies."""
    number = arg(unit, PARTIAL) + row * arg(unit, N_SPANS) + span
    return load_i64(arg(args, PARTIALS)) + 4 * (number * arg(args, N_HEAD) + head) * (2 + arg(args, V_DIM))


@helper
def _attend_one_span(args, unit, head, base):
    """A unit with one span: the state of each query goes to the partial results."""
    v_dim, queries = arg(args, V_DIM), arg(args, MAX_QUERIES)
    heads = arg(args, N_HEAD) // arg(args, N_HEAD_KV)
    n = _load_queries(args, unit, head, base)
    state = _state(args, base, 0)
    _clear(args, state)
    _attend_span(args, unit, head, base, n, arg(unit, UNIT_SPAN))
    for i in range(n):
        out = _partial(args, unit, i // heads, arg(unit, UNIT_SPAN), head * heads + i % heads)
        store_f32(out, load_f32(state + 4 * i))
        store_f32(out + 4, load_f32(state + 4 * (queries + i)))
        copy_bytes(out + 8, state + 8 * queries + 4 * i * v_dim, 4 * v_dim)


@helper
def _merge_spans(args, unit, head, base):
    """Merges the partial results of a unit's rows, span after span, into y."""
    v_dim, heads, total = arg(args, V_DIM), arg(args, N_HEAD) // arg(args, N_HEAD_KV), _state(args, base, 1)
    for i in range(arg(unit, UNIT_ROWS) * heads):
        row, query_head = i // heads, head * heads + i % heads
        store_f32(total, NEG_INF)
        store_f32(total + 4, 0.0)
        for span in range(arg(unit, N_SPANS)):
            part = _partial(args, unit, row, span, query_head)
            merge(total, total + 4, total + 8, part, part + 4, part + 8, v_dim)
        _finish(args, arg(unit, FIRST_ROW) + row, query_head, total + 4, total + 8)


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
            if fetch_add(done, 1) == arg(unit, N_SPANS) - 1:  # the last of the spans merges them all
                atomic_store(done, 0)
                _merge_spans(args, unit, item % n_head_kv, base)
