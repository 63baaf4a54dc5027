"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and storing K and V into their cells.

Angles and their sines are computed in float64 by our own polynomials, so that no libm decides a bit.
"""

from __future__ import annotations

import math

from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.work import n_rows, run_length, take
from llmkit.simd.ops import (
    arg,
    bits_to_f32,
    f32_to_f16_bits,
    fma_f64,
    keep_lanes,
    load_f32,
    load_f64,
    load_i64,
    store_f32,
    store_u16,
    vload,
    vstore,
    vstore_f16,
)

# positions: int64 [n_rows]; frequencies: float64 [n_rot / 2], radians a position; table: float32 [n_rows][n_rot],
# first the cosines, then the sines, all times scale (float32 bits).
TABLE_FIELDS = ("counter", "n_rows", "positions", "frequencies", "n_rot", "table", "scale")
POSITIONS, FREQUENCIES, TABLE_N_ROT, TABLE, SCALE = range(2, 7)

# q, k, v: float32 rows; n_rot: rotated dimensions of a head, 0 for none; interleaved: 1 pairs (2i, 2i+1), 0 pairs
# (i, i + n_rot/2). blocks: int64 [n_rows], address of the block of each row's cell; cells: int64 [n_rows], the cell
# 0..31 in it; k_offset, v_offset: of this layer in a block; k_type, v_type: 0 float32, 1 float16; v_dim: head_dim
# rounded up to 16.
STORE_FIELDS = (
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
    "k_type",
    "v_type",
    "v_dim",
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
    ROTATIONS,
    BLOCKS,
    CELLS,
    K_OFFSET,
    V_OFFSET,
    K_TYPE,
    V_TYPE,
    V_DIM,
) = range(2, 20)

_TWO_OVER_PI = 0.6366197723675814
_PI_2_HIGH, _PI_2_LOW = 1.5707963267948966, 6.123233995736766e-17  # pi / 2 as a sum of two float64


@helper
def _sin_poly(r):
    """sin on [-pi/4, pi/4]; coefficients of fdlibm's __kernel_sin."""
    z = r * r
    p = fma_f64(z, 1.58969099521155010221e-10, -2.50507602534068634195e-08)
    p = fma_f64(z, p, 2.75573137070700676789e-06)
    p = fma_f64(z, p, -1.98412698298579493134e-04)
    p = fma_f64(z, p, 8.33333333332248946124e-03)
    p = fma_f64(z, p, -1.66666666666666324348e-01)
    return fma_f64(z * r, p, r)


@helper
def _cos_poly(r):
    """cos on [-pi/4, pi/4]; coefficients of fdlibm's __kernel_cos."""
    z = r * r
    p = fma_f64(z, -1.13596475577881948265e-11, 2.08757232129817482790e-09)
    p = fma_f64(z, p, -2.75573143513906633035e-07)
    p = fma_f64(z, p, 2.48015872894767294178e-05)
    p = fma_f64(z, p, -1.38888888888741095749e-03)
    p = fma_f64(z, p, 4.16666666666666019037e-02)
    return fma_f64(z * z, p, fma_f64(z, -0.5, 1.0))


@helper
def cos_sin(angle):
    """Cosine and sine of a float64 (below 2^30 radians), to about 1e-15."""
    n = math.floor(angle * _TWO_OVER_PI + 0.5)
    r = fma_f64(-n, _PI_2_LOW, fma_f64(-n, _PI_2_HIGH, angle))
    s, c = _sin_poly(r), _cos_poly(r)
    quarter = int(n) & 3
    if quarter & 1:
        s, c = c, -s
    if quarter & 2:
        s, c = -s, -c
    return c, s


@kernel
def rope_table(args, _thread, n_threads):
    half, scale = arg(args, TABLE_N_ROT) // 2, float(bits_to_f32(arg(args, SCALE)))
    items = n_rows(args)
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for row in range(first_item, min(first_item + run, items)):
            pos = float(load_i64(arg(args, POSITIONS) + 8 * row))
            table = arg(args, TABLE) + row * half * 8
            for i in range(half):
                c, s = cos_sin(pos * load_f64(arg(args, FREQUENCIES) + 8 * i))
                store_f32(table + 4 * i, c * scale)
                store_f32(table + 4 * (half + i), s * scale)


@helper
def _rotate(x, table, half, first, second, step):
    """Rotates `half` pairs in place: members `first` and `second` of pair i lie `step * i` values further."""
    for i in range(half):
        c, s = load_f32(table + 4 * i), load_f32(table + 4 * (half + i))
        a, b = x + 4 * (step * i + first), x + 4 * (step * i + second)
        u, w = load_f32(a), load_f32(b)
        store_f32(a, u * c - w * s)
        store_f32(b, u * s + w * c)


@helper
def _rotate_head(args, x, table):
    half = arg(args, N_ROT) // 2
    if arg(args, INTERLEAVED):
        _rotate(x, table, half, 0, 1, 2)
    else:
        _rotate(x, table, half, 0, half, 1)


@helper
def _store_k(args, k, target, cell):
    """K of a block is [head][dim][cell]: 16 cells' values of one dimension make a vector."""
    if arg(args, K_TYPE) == 0:
        for d in range(arg(args, HEAD_DIM)):
            store_f32(target + 4 * (32 * d + cell), load_f32(k + 4 * d))
    else:
        for d in range(arg(args, HEAD_DIM)):
            store_u16(target + 2 * (32 * d + cell), f32_to_f16_bits(load_f32(k + 4 * d)))


@helper
def _store_v(args, v, target):
    """V of a block is [head][cell][dim], dimensions filled up to 16 with zeros."""
    for d in range(0, arg(args, V_DIM), 16):
        values = keep_lanes(vload(v + 4 * d), 0, arg(args, HEAD_DIM) - d, 0.0)
        if arg(args, V_TYPE) == 0:
            vstore(target + 4 * d, values)
        else:
            vstore_f16(target + 2 * d, values)


@helper
def _store_head(args, row, head):
    """Rotates K of one head and puts K and V into the row's cell."""
    head_dim, v_dim = arg(args, HEAD_DIM), arg(args, V_DIM)
    block, cell = load_i64(arg(args, BLOCKS) + 8 * row), load_i64(arg(args, CELLS) + 8 * row)
    k_bytes = 4 - 2 * arg(args, K_TYPE)
    v_bytes = 4 - 2 * arg(args, V_TYPE)
    offset = row * arg(args, KV_STRIDE) + 4 * head * head_dim
    _rotate_head(args, arg(args, K) + offset, arg(args, ROTATIONS) + row * arg(args, N_ROT) * 4)
    _store_k(args, arg(args, K) + offset, block + arg(args, K_OFFSET) + head * head_dim * 32 * k_bytes, cell)
    target = block + arg(args, V_OFFSET) + (head * 32 + cell) * v_dim * v_bytes
    _store_v(args, arg(args, V) + offset, target)


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
            table = arg(args, ROTATIONS) + row * arg(args, N_ROT) * 4
            q = arg(args, Q) + row * arg(args, Q_STRIDE)
            for g in range(group):
                _rotate_head(args, q + 4 * (head * group + g) * head_dim, table)
            _store_head(args, row, head)
