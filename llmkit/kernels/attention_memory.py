"""Attention's argument block, a thread's scratch memory, and tiles of K and V brought into it as float32."""

from __future__ import annotations

from llmkit.kernels.jit import helper
from llmkit.simd.ops import (
    arg,
    copy_bytes,
    f16_bits_to_f32,
    load_f32,
    load_i64,
    load_u16,
    prefetch,
    store_f32,
    vload_f16,
    vstore,
)

TILE, SPAN, GROUP = 32, 256, 4
NEG_INF = float("-inf")

# q, y: float32 rows. units: address of the address of int64 [n_units][UNIT]; unit_count: address of their number.
# scratch: scratch_bytes a thread. window: tokens a query sees, itself included; 0 is all. cap: float32 bits, slopes and
# sinks: addresses, see attention_scores; 0 for none.
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
    "cap",
    "slopes",
    "sinks",
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
    CAP,
    SLOPES,
    SINKS,
) = range(2, 26)

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
def scores_at(args, base):
    return _v_tile(args, base) + 4 * TILE * arg(args, V_DIM)


@helper
def state_at(args, base, total):
    """Maxima, then sums, then outputs of all queries; of the span (total 0) or of all spans so far (1)."""
    queries = arg(args, MAX_QUERIES)
    return scores_at(args, base) + 4 * GROUP * TILE + _STEP_BYTES + 4 * total * queries * (2 + arg(args, V_DIM))


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
def load_tile(args, base, cells, n, head):
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


@helper
def prefetch_tile(args, cells, n, head):
    """Asks for a tile's K and V, if its cells lie in one block: blocks are scattered, no hardware guesses the next."""
    k, v = _head_addresses(args, load_i64(cells) >> 5, head)
    for at in range(0, TILE * arg(args, HEAD_DIM) * (4 - 2 * arg(args, K_TYPE)), 64):
        prefetch(k + at)
    for at in range(0, n * arg(args, V_DIM) * (4 - 2 * arg(args, V_TYPE)), 64):
        prefetch(v + at)
