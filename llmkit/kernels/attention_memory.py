"""Attention's argument block, a thread's scratch memory, and tiles of K and V brought into it as float32.

Knows no KV type: how cells are read is the business of the functions in the argument block (kernels.kv_types).
"""

from __future__ import annotations

from llmkit.kernels.jit import helper
from llmkit.simd.ops import arg, call_cells, copy_bytes, load_i64, prefetch

TILE, SPAN, GROUP = 32, 256, 4
NEG_INF = float("-inf")

# q, y: float32 rows. units: address of the address of int64 [n_units][UNIT]; unit_count: address of their number.
# scratch: scratch_bytes a thread. Addresses of int64 [n_rows], a number a row: first_visible, the first token of its
# sequence that it sees (0: all see the first); row_ends, how many there are up to itself; row_positions, its position,
# read where distance counts; row_partials, the number of its first partial result, one a span.
# cap: float32 bits, slopes and sinks: addresses, see attention_scores; 0 for none.
# kind: which of a step's cells are meant; block_addresses: of that kind's blocks.
# k_load, v_load: addresses of the types' functions (jit.cells); k_head_bytes, v_head_bytes: of one head in a block.
# hadamard: address of what transforms the outputs back, n_rot_v values at a time, where n_rot_v is not 0.
# partials: address of the address where units of one span leave (m, l, o) of each row and head; row_done: of the
# address of int64 [n_rows][n_head_kv], all 0 between runs: how many spans of each row are done.
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
    "first_visible",
    "kind",
    "k_offset",
    "v_offset",
    "k_load",
    "v_load",
    "k_head_bytes",
    "v_head_bytes",
    "hadamard",
    "n_rot_v",
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
    "row_ends",
    "row_positions",
    "row_partials",
    "row_done",
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
    FIRST_VISIBLE,
    KIND,
    K_OFFSET,
    V_OFFSET,
    K_LOAD,
    V_LOAD,
    K_HEAD_BYTES,
    V_HEAD_BYTES,
    HADAMARD,
    N_ROT_V,
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
    ROW_ENDS,
    ROW_POSITIONS,
    ROW_PARTIALS,
    ROW_DONE,
) = range(2, 35)

# A unit of work: rows that one thread takes through their sequences, or through one span of them. rows: address of
# their numbers; steps: address of int64 [n_steps][STEP], done in order; span: the only one to do, or -1 for all.
UNIT_FIELDS = ("steps", "n_steps", "rows", "n_rows", "span")
UNIT_STEPS, N_STEPS, UNIT_ROWS, N_UNIT_ROWS, UNIT_SPAN = range(5)
UNIT = 5

# A step: n_rows rows of the unit, the offset-th on, meet tiles first_tile .. last_tile, which lie in the same cells for
# all of them. A row's steps follow each other without a gap; closes: 1 where with the last tile a span of these rows
# ends, 0 where a later step goes on in it. rows: address of their numbers; positions: address of the int64 positions
# of a sequence's tokens, read where distance counts; cells of kind 0 and 1: addresses of their int64 cells (number of
# the block * 32 + cell; negative: none, which no row sees), from the first token on.
STEP_FIELDS = ("rows", "n_rows", "offset", "first_tile", "last_tile", "closes", "positions", "cells_0", "cells_1")
STEP_ROWS, N_STEP_ROWS, OFFSET, FIRST_TILE, LAST_TILE, CLOSES, POSITIONS, STEP_CELLS = range(8)
STEP = 9

SPAN_TILES = SPAN // TILE


def scratch_bytes(max_queries: int, head_dim: int, v_dim: int) -> int:
    """Bytes a thread needs: q, K and V of a tile, K of a block, scores, three times maxima, sums and outputs."""
    n = max_queries * (head_dim + 3 * (v_dim + 2)) + TILE * (2 * head_dim + v_dim) + GROUP * TILE
    return (4 * n + _STEP_BYTES + 4095) // 4096 * 4096


_STEP_BYTES = 256  # four factors, four pairs of limits, 32 distances

# -- scratch of a thread, in this order ---------------------------------------------------------------------------


@helper
def _k_tile(args, base):
    return base + 4 * arg(args, MAX_QUERIES) * arg(args, HEAD_DIM)


@helper
def _v_tile(args, base):
    return _k_tile(args, base) + 4 * TILE * arg(args, HEAD_DIM)


@helper
def _k_block(args, base):
    return _v_tile(args, base) + 4 * TILE * arg(args, V_DIM)


@helper
def scores_at(args, base):
    return _k_block(args, base) + 4 * TILE * arg(args, HEAD_DIM)


@helper
def state_at(args, base, which):
    """Maxima, then sums, then outputs of queries; which: PART, TOTAL or SAVED (kernels.attention_state)."""
    queries = arg(args, MAX_QUERIES)
    return scores_at(args, base) + 4 * GROUP * TILE + _STEP_BYTES + 4 * which * queries * (2 + arg(args, V_DIM))


# -- a tile of K and V as float32 ---------------------------------------------------------------------------------


@helper
def _run_of(cells, n):
    """How many of the n >= 1 cells follow each other in one block, from the first on."""
    first = load_i64(cells)
    n = min(n, TILE - (first & (TILE - 1)))
    for t in range(1, n):
        if load_i64(cells + 8 * t) != first + t:
            return t
    return n


@helper
def _head_addresses(args, block, head):
    """K and V of a head in the block with this number."""
    address = load_i64(arg(args, BLOCK_ADDRESSES) + 8 * block)
    k = address + arg(args, K_OFFSET) + head * arg(args, K_HEAD_BYTES)
    return k, address + arg(args, V_OFFSET) + head * arg(args, V_HEAD_BYTES)


@helper
def _load_run(args, base, cell, t, n, head):
    """n cells of one block into columns (K) and rows (V) t .. t + n of the tile."""
    head_dim, v_dim, first = arg(args, HEAD_DIM), arg(args, V_DIM), cell & (TILE - 1)
    k, v = _head_addresses(args, cell >> 5, head)
    source = call_cells(arg(args, K_LOAD), k, head_dim, first, n, _k_block(args, base)) + 4 * first
    target = _k_tile(args, base) + 4 * t
    for d in range(head_dim):
        copy_bytes(target + 4 * TILE * d, source + 4 * TILE * d, 4 * n)
    target = _v_tile(args, base) + 4 * t * v_dim
    rows = call_cells(arg(args, V_LOAD), v, v_dim, first, n, target)
    if rows != target:
        copy_bytes(target, rows, 4 * n * v_dim)


@helper
def load_tile(args, base, cells, n, head):
    """n cells' K and V as float32; the addresses of both. What has no cell, and columns of K from n on, is anything."""
    k_tile, v_tile, cell = _k_tile(args, base), _v_tile(args, base), load_i64(cells)
    if cell & (TILE - 1) == 0 and _run_of(cells, n) == n:
        k, v = _head_addresses(args, cell >> 5, head)
        k_tile = call_cells(arg(args, K_LOAD), k, arg(args, HEAD_DIM), 0, n, k_tile)
        return k_tile, call_cells(arg(args, V_LOAD), v, arg(args, V_DIM), 0, n, v_tile)
    t = 0
    while t < n:
        run = _run_of(cells + 8 * t, n - t)
        if load_i64(cells + 8 * t) >= 0:
            _load_run(args, base, load_i64(cells + 8 * t), t, run, head)
        t += run
    return k_tile, v_tile


@helper
def prefetch_tile(args, cells, head):
    """Asks for K and V of the first cell's block: blocks are scattered, no hardware guesses the next."""
    if load_i64(cells) < 0:
        return
    k, v = _head_addresses(args, load_i64(cells) >> 5, head)
    for at in range(0, arg(args, K_HEAD_BYTES), 64):
        prefetch(k + at)
    for at in range(0, arg(args, V_HEAD_BYTES), 64):
        prefetch(v + at)
