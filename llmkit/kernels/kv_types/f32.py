"""F32 cells: K is [dim][cell], V is [cell][dim], which is what attention reads: nothing is copied to load them."""

from __future__ import annotations

from llmkit.kernels.jit import cells
from llmkit.simd.ops import keep_lanes, load_f32, store_f32, vload, vstore


@cells
def load_k(head, _n_dims, _first, _n, _target):
    return head


@cells
def load_v(head, n_dims, first, _n, _target):
    return head + 4 * first * n_dims


@cells
def store_k(head, n_dims, cell, source, _n_valid):
    for d in range(n_dims):
        store_f32(head + 4 * (32 * d + cell), load_f32(source + 4 * d))
    return 0


@cells
def store_v(head, n_dims, cell, source, n_valid):
    for d in range(0, n_dims, 16):
        vstore(head + 4 * (cell * n_dims + d), keep_lanes(vload(source + 4 * d), 0, n_valid - d, 0.0))
    return 0
