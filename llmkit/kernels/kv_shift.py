"""Turns keys that lie in cells to other positions: RoPE by the difference, a pure rotation. Knows no KV type.

Where keys were transformed before they were quantised, the transform is undone, the key turned, and transformed again.
"""

from __future__ import annotations

from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.rope import rotate_head
from llmkit.kernels.work import n_rows, run_length, take
from llmkit.simd.ops import arg, call_cells, load_f32, load_i64, store_f32, store_i64

# A row is a token. table, n_rot, interleaved: see rope, of the positions by which rows turn. blocks: int64 [n_rows],
# address of the block of each row's cell, 0 for a row without one; the rest as in kv_store and attention_memory.
# scratch: room for K of a block and of one head as float32, scratch_bytes a thread.
FIELDS = (
    "counter",
    "n_rows",
    "table",
    "n_rot",
    "interleaved",
    "blocks",
    "cells",
    "n_head_kv",
    "head_dim",
    "k_offset",
    "k_head_bytes",
    "k_load",
    "k_store",
    "hadamard",
    "n_rot_k",
    "scratch",
    "scratch_bytes",
)
(
    TABLE,
    N_ROT,
    INTERLEAVED,
    BLOCKS,
    CELLS,
    N_HEAD_KV,
    HEAD_DIM,
    K_OFFSET,
    K_HEAD_BYTES,
    K_LOAD,
    K_STORE,
    HADAMARD,
    N_ROT_K,
    SCRATCH,
    SCRATCH_BYTES,
) = range(2, 17)

# rotated: int64 [n_rows], addresses of int64 that say for which position a key is rotated; deltas: int64 [n_rows], what
# is added to them. Runs after the keys are turned.
MARK_FIELDS = ("counter", "n_rows", "rotated", "deltas")
ROTATED, DELTAS = range(2, 4)


def scratch_bytes(head_dim: int) -> int:
    """Bytes a thread needs."""
    return 33 * 4 * (head_dim + 16)


@helper
def _turn(args, row, head, block, base):
    """Turns the key of one head."""
    head_dim, cell = arg(args, HEAD_DIM), load_i64(arg(args, CELLS) + 8 * row)
    x, at = base, block + arg(args, K_OFFSET) + head * arg(args, K_HEAD_BYTES)
    loaded = call_cells(arg(args, K_LOAD), at, head_dim, cell, 1, base + 4 * (head_dim + 16)) + 4 * cell
    for d in range(head_dim):
        store_f32(x + 4 * d, load_f32(loaded + 128 * d))
    if arg(args, N_ROT_K) != 0:
        call_cells(arg(args, HADAMARD), x, head_dim, arg(args, N_ROT_K), 0, 0)
    rotate_head(x, arg(args, TABLE) + 4 * row * arg(args, N_ROT), arg(args, N_ROT), arg(args, INTERLEAVED))
    if arg(args, N_ROT_K) != 0:
        call_cells(arg(args, HADAMARD), x, head_dim, arg(args, N_ROT_K), 0, 0)
    call_cells(arg(args, K_STORE), at, head_dim, cell, x, head_dim)


@kernel
def kv_shift(args, thread, n_threads):
    """An item is one row's KV head."""
    n_head_kv, base = arg(args, N_HEAD_KV), arg(args, SCRATCH) + thread * arg(args, SCRATCH_BYTES)
    base = (base + 63) // 64 * 64
    items = n_rows(args) * n_head_kv
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for item in range(first_item, min(first_item + run, items)):
            block = load_i64(arg(args, BLOCKS) + 8 * (item // n_head_kv))
            if block != 0:
                _turn(args, item // n_head_kv, item % n_head_kv, block, base)


@kernel
def mark(args, _thread, _n_threads):
    """Writes down for which positions the keys are rotated now: one thread does it all."""
    if take(args, 1) == 0:
        for row in range(n_rows(args)):
            at = load_i64(arg(args, ROTATED) + 8 * row)
            store_i64(at, load_i64(at) + load_i64(arg(args, DELTAS) + 8 * row))
