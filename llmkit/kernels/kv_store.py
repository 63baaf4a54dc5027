"""Rotates queries and keys, and puts keys and values into their cells. Knows no KV type: see kernels.kv_types."""

from __future__ import annotations

from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.rope import rotate_head
from llmkit.kernels.work import n_rows, run_length, take
from llmkit.simd.ops import arg, call_cells, load_i64

# q, k, v: float32 rows; n_rot: rotated dimensions of a head, 0 for none; interleaved, table: see rope. blocks: int64
# [n_rows], address of the block of each row's cell; cells: int64 [n_rows], the cell 0..31 in it; k_offset, v_offset: of
# this layer in a block; k_store, v_store: addresses of the types' functions (jit.cells); k_head_bytes, v_head_bytes: of
# one head in a block; v_dim: head_dim rounded up to 16. hadamard: address of the transform; n_rot_k, n_rot_v: values of
# q and k, and of v, that it takes at a time, 0 for none.
FIELDS = (
    "counter",
    "n_rows",
    "q",
    "q_stride",
    "k",
    "v",
    "kv_stride",
    "n_head",
    "n_head_kv",
    "head_dim",
    "n_rot",
    "interleaved",
    "table",
    "blocks",
    "cells",
    "k_offset",
    "v_offset",
    "k_store",
    "v_store",
    "k_head_bytes",
    "v_head_bytes",
    "v_dim",
    "hadamard",
    "n_rot_k",
    "n_rot_v",
)
(
    Q,
    Q_STRIDE,
    K,
    V,
    KV_STRIDE,
    N_HEAD,
    N_HEAD_KV,
    HEAD_DIM,
    N_ROT,
    INTERLEAVED,
    TABLE,
    BLOCKS,
    CELLS,
    K_OFFSET,
    V_OFFSET,
    K_STORE,
    V_STORE,
    K_HEAD_BYTES,
    V_HEAD_BYTES,
    V_DIM,
    HADAMARD,
    N_ROT_K,
    N_ROT_V,
) = range(2, 25)


@helper
def _rotate_heads(args, row, x, n):
    """RoPE, and then the transform, of n heads of queries or keys at x."""
    head_dim, table = arg(args, HEAD_DIM), arg(args, TABLE) + row * arg(args, N_ROT) * 4
    for i in range(n):
        rotate_head(x + 4 * i * head_dim, table, arg(args, N_ROT), arg(args, INTERLEAVED))
    if arg(args, N_ROT_K) != 0:
        call_cells(arg(args, HADAMARD), x, n * head_dim, arg(args, N_ROT_K), 0, 0)


@helper
def _store_head(args, row, head):
    """Rotates K of one head and puts K and V into the row's cell."""
    head_dim = arg(args, HEAD_DIM)
    block, cell = load_i64(arg(args, BLOCKS) + 8 * row), load_i64(arg(args, CELLS) + 8 * row)
    offset = row * arg(args, KV_STRIDE) + 4 * head * head_dim
    k, v = arg(args, K) + offset, arg(args, V) + offset
    _rotate_heads(args, row, k, 1)
    if arg(args, N_ROT_V) != 0:
        call_cells(arg(args, HADAMARD), v, head_dim, arg(args, N_ROT_V), 0, 0)
    k_target = block + arg(args, K_OFFSET) + head * arg(args, K_HEAD_BYTES)
    v_target = block + arg(args, V_OFFSET) + head * arg(args, V_HEAD_BYTES)
    call_cells(arg(args, K_STORE), k_target, head_dim, cell, k, head_dim)
    call_cells(arg(args, V_STORE), v_target, arg(args, V_DIM), cell, v, head_dim)


@kernel
def rope_store(args, _thread, n_threads):
    """An item is one row's group of query heads with its K and V head."""
    n_head_kv, head_dim = arg(args, N_HEAD_KV), arg(args, HEAD_DIM)
    group = arg(args, N_HEAD) // n_head_kv
    items = n_rows(args) * n_head_kv
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for item in range(first_item, min(first_item + run, items)):
            row, head = item // n_head_kv, item % n_head_kv
            q = arg(args, Q) + row * arg(args, Q_STRIDE)
            _rotate_heads(args, row, q + 4 * head * group * head_dim, group)
            _store_head(args, row, head)
