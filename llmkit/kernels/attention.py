"""Attention over blocks of cells, with online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867; FlashAttention).

A sequence is walked in tiles of 32 tokens counted from its first, wherever they lie, and in spans of 256: within a span
tile after tile, then span after span (`merge`). Both are fixed by the tokens' order alone, so a query's bits depend
neither on what is computed beside it, of its own sequence or of others, nor on whether one thread takes all spans or
several threads one each. Which rows meet which tiles together is in the units (attention_memory); that it is right
is the business of whoever makes them.
"""

from __future__ import annotations

from llmkit.kernels.attention_memory import (
    CAP,
    CLOSES,
    FIELDS,
    FIRST_TILE,
    FIRST_VISIBLE,
    GROUP,
    HEAD_DIM,
    KIND,
    LAST_TILE,
    MAX_QUERIES,
    N_HEAD,
    N_HEAD_KV,
    N_STEP_ROWS,
    N_STEPS,
    N_UNIT_ROWS,
    OFFSET,
    POSITIONS,
    Q_STRIDE,
    ROW_ENDS,
    ROW_POSITIONS,
    SCALE,
    SCRATCH,
    SCRATCH_BYTES,
    SLOPES,
    SPAN,
    SPAN_TILES,
    STEP,
    STEP_CELLS,
    STEP_FIELDS,
    STEP_ROWS,
    TILE,
    UNIT,
    UNIT_COUNT,
    UNIT_FIELDS,
    UNIT_ROWS,
    UNIT_SPAN,
    UNIT_STEPS,
    UNITS,
    V_DIM,
    Q,
    load_tile,
    prefetch_tile,
    scores_at,
    scratch_bytes,
    state_at,
)
from llmkit.kernels.attention_scores import add_distance, cap_scores, put_distances
from llmkit.kernels.attention_state import (
    PART,
    SAVED,
    TOTAL,
    add_to_total,
    clear,
    copy_state,
    count_span,
    finish_total,
    leave_nothing,
    leave_partials,
)
from llmkit.kernels.attention_tile import add_values_1, add_values_4, score_tile
from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.softmax_tile import softmax_part, softmax_whole
from llmkit.kernels.work import take
from llmkit.simd.ops import (
    arg,
    bits_to_f32,
    load_f32,
    load_i64,
    mul,
    store_f32,
    store_i64,
    vload,
    vload_splat,
    vstore,
    zero_bytes,
)

__all__ = ["FIELDS", "SPAN", "STEP", "STEP_FIELDS", "TILE", "UNIT", "UNIT_FIELDS", "attention", "scratch_bytes"]

# -- queries against a tile ---------------------------------------------------------------------------------------


@helper
def _load_queries(args, step, head, base):
    """Scaled queries of the step's rows and the group's heads as float32 [query / 4][dim][4]; missing ones are zero."""
    head_dim, heads = arg(args, HEAD_DIM), arg(args, N_HEAD) // arg(args, N_HEAD_KV)
    n, scale = arg(step, N_STEP_ROWS) * heads, load_f32(args + 8 * SCALE)
    if n % GROUP != 0:
        zero_bytes(base + 4 * (n // GROUP * GROUP) * head_dim, 4 * GROUP * head_dim)
    for i in range(n):
        q = arg(args, Q) + load_i64(arg(step, STEP_ROWS) + 8 * (i // heads)) * arg(args, Q_STRIDE)
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
def _sight(args, step):
    """Of the step's rows: the first token that any sees, that all see; the end of what all see, of what any sees."""
    row = load_i64(arg(step, STEP_ROWS))
    low_any = low_all = _first_visible(args, row)
    high_any = high_all = load_i64(arg(args, ROW_ENDS) + 8 * row)
    for r in range(1, arg(step, N_STEP_ROWS)):
        row = load_i64(arg(step, STEP_ROWS) + 8 * r)
        low, high = _first_visible(args, row), load_i64(arg(args, ROW_ENDS) + 8 * row)
        low_any, low_all = min(low_any, low), max(low_all, low)
        high_any, high_all = max(high_any, high), min(high_all, high)
    return low_any, low_all, high_all, high_any


@helper
def _set_limits(args, step, quad, n, first, limits):
    """What each of four queries sees of the tile, to int64 limits[4][2]; whether all see all of it."""
    heads = arg(args, N_HEAD) // arg(args, N_HEAD_KV)
    whole = True
    for i in range(GROUP):
        query = min(GROUP * quad + i, n - 1)  # those beyond the last are computed with it and never read
        row = load_i64(arg(step, STEP_ROWS) + 8 * (query // heads))
        low = max(0, _first_visible(args, row) - first)
        high = max(0, min(TILE, load_i64(arg(args, ROW_ENDS) + 8 * row) - first))
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
def _change_scores(args, step, head, quad, n, first, scores):
    """Caps the scores of four queries on the tile that starts at token `first`, and adds what distance costs."""
    heads, slopes = arg(args, N_HEAD) // arg(args, N_HEAD_KV), arg(args, SLOPES)
    if arg(args, CAP) != 0:
        cap_scores(scores, 2 * GROUP, bits_to_f32(arg(args, CAP)))
    if slopes != 0:
        for i in range(GROUP):
            query = min(GROUP * quad + i, n - 1)
            row = load_i64(arg(step, STEP_ROWS) + 8 * (query // heads))
            distance = load_i64(arg(args, ROW_POSITIONS) + 8 * row) - load_i64(arg(step, POSITIONS) + 8 * first)
            at = scores + 4 * GROUP * TILE + 128
            add_distance(scores + 4 * TILE * i, slopes, head * heads + query % heads, at, distance)


@helper
def _attend_group(args, step, head, base, quad, n, first, k, v, whole):
    """Four queries (n in all) against the tile that starts at token `first`; whole: every row sees all of it."""
    v_dim, queries = arg(args, V_DIM), arg(args, MAX_QUERIES)
    scores, state = scores_at(args, base), state_at(args, base, PART)
    factors, limits = scores + 4 * GROUP * TILE, scores + 4 * GROUP * TILE + 64
    maxima = state + 4 * GROUP * quad
    sums, out = maxima + 4 * queries, state + 8 * queries + 4 * GROUP * quad * v_dim
    score_tile(base + 4 * GROUP * quad * arg(args, HEAD_DIM), k, arg(args, HEAD_DIM), scores)
    if arg(args, CAP) + arg(args, SLOPES) != 0:
        _change_scores(args, step, head, quad, n, first, scores)
    if whole or _set_limits(args, step, quad, n, first, limits):
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


# -- steps and units ----------------------------------------------------------------------------------------------


@helper
def _attend_tiles(args, step, head, base, n, first_tile, last_tile, sight):
    """All queries of the step against tiles of one span, into the span's state."""
    _low_any, low_all, high_all, high_any = sight
    cells, positions = arg(step, STEP_CELLS + arg(args, KIND)), arg(step, POSITIONS)
    for first in range(first_tile * TILE, last_tile * TILE, TILE):
        n_cells, whole = min(TILE, high_any - first), low_all <= first and first + TILE <= high_all
        k, v = load_tile(args, base, cells + 8 * first, n_cells, head)
        if first + TILE < min(high_any, last_tile * TILE):
            prefetch_tile(args, cells + 8 * (first + TILE), head)
        if arg(args, SLOPES) != 0:
            put_distances(positions + 8 * first, n_cells, scores_at(args, base) + 4 * GROUP * TILE + 128)
        for quad in range((n + GROUP - 1) // GROUP):
            _attend_group(args, step, head, base, quad, n, first, k, v, whole)


@helper
def _close_span(args, unit, step, head, base, n, span):
    """The step's rows are through the span, or (with n 0) see nothing of it."""
    rows, n_rows = arg(step, STEP_ROWS), arg(step, N_STEP_ROWS)
    if arg(unit, UNIT_SPAN) < 0:
        add_to_total(args, base, arg(step, OFFSET) * (arg(args, N_HEAD) // arg(args, N_HEAD_KV)), n)
    elif n == 0:
        leave_nothing(args, rows, n_rows, span, head)
    else:
        leave_partials(args, rows, n_rows, span, head, base)


@helper
def _attend_step(args, unit, step, head, base):
    """The step's rows against its tiles, span by span. Nothing is done for tiles that no row sees."""
    sight, heads = _sight(args, step), arg(args, N_HEAD) // arg(args, N_HEAD_KV)
    first, last = arg(step, FIRST_TILE), arg(step, LAST_TILE)
    seen, end = max(first, sight[0] // TILE), min(last, (sight[3] + TILE - 1) // TILE)
    part, saved = state_at(args, base, PART), state_at(args, base, SAVED)
    n = _load_queries(args, step, head, base) if seen < end else 0
    place, n_queries = arg(step, OFFSET) * heads, arg(step, N_STEP_ROWS) * heads
    for span in range(first // SPAN_TILES, (last + SPAN_TILES - 1) // SPAN_TILES):
        begins, stop = span * SPAN_TILES >= first, min(end, (span + 1) * SPAN_TILES)
        closes = (span + 1) * SPAN_TILES <= last or arg(step, CLOSES) != 0
        start = max(seen, span * SPAN_TILES)
        if begins and closes and start >= stop:
            _close_span(args, unit, step, head, base, 0, span)
            continue
        if begins:
            clear(args, part, n_queries)
        else:
            copy_state(args, part, 0, saved, place, n_queries)
        if start < stop:
            _attend_tiles(args, step, head, base, n, start, stop, sight)
        if closes:
            _close_span(args, unit, step, head, base, n_queries, span)
        else:
            copy_state(args, saved, place, part, 0, n_queries)


@kernel
def attention(args, thread, _n_threads):
    """An item is a unit and a KV head."""
    n_head_kv, n_units = arg(args, N_HEAD_KV), load_i64(arg(args, UNIT_COUNT))
    heads = arg(args, N_HEAD) // n_head_kv
    base, units = arg(args, SCRATCH) + thread * arg(args, SCRATCH_BYTES), load_i64(arg(args, UNITS))
    while True:
        item = take(args, 1)
        if item >= n_units * n_head_kv:
            break
        unit, head = units + 8 * UNIT * (item // n_head_kv), item % n_head_kv
        rows, n_rows, span = arg(unit, UNIT_ROWS), arg(unit, N_UNIT_ROWS), arg(unit, UNIT_SPAN)
        if span < 0:
            clear(args, state_at(args, base, TOTAL), n_rows * heads)
        for i in range(arg(unit, N_STEPS)):
            _attend_step(args, unit, arg(unit, UNIT_STEPS) + 8 * STEP * i, head, base)
        if span < 0:
            finish_total(args, rows, n_rows, head, base)
        else:
            count_span(args, rows, n_rows, span, head, base)
