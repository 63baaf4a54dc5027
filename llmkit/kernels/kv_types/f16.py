"""F16 cells: K is [dim][cell], V is [cell][dim]."""

from __future__ import annotations

from llmkit.kernels.jit import cells
from llmkit.simd.ops import f32_to_f16_bits, keep_lanes, load_f32, store_u16, vload, vload_f16, vstore, vstore_f16


@cells
def load_k(head, n_dims, _first, _n, target):
    for i in range(0, 32 * n_dims, 16):
        vstore(target + 4 * i, vload_f16(head + 2 * i))
    return target


@cells
def load_v(head, n_dims, first, n, target):
    source = head + 2 * first * n_dims
    for i in range(0, n * n_dims, 16):
        vstore(target + 4 * i, vload_f16(source + 2 * i))
    return target


@cells
def store_k(head, n_dims, cell, source, _n_valid):
    for d in range(n_dims):
        store_u16(head + 2 * (32 * d + cell), f32_to_f16_bits(load_f32(source + 4 * d)))
    return 0


@cells
def store_v(head, n_dims, cell, source, n_valid):
    for d in range(0, n_dims, 16):
        vstore_f16(head + 2 * (cell * n_dims + d), keep_lanes(vload(source + 4 * d), 0, n_valid - d, 0.0))
    return 0
