"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

Angles and their sines are computed in float64 by our own polynomials, so that no libm decides a bit.
"""

from __future__ import annotations

import math

from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.work import n_rows, run_length, take
from llmkit.simd.ops import arg, bits_to_f32, fma_f64, load_f32, load_f64, load_i64, store_f32

# positions: int64 [n_rows]; frequencies: float64 [n_rot / 2], radians a position; table: float32 [n_rows][n_rot],
# first the cosines, then the sines, all times scale (float32 bits).
TABLE_FIELDS = ("counter", "n_rows", "positions", "frequencies", "n_rot", "table", "scale")
POSITIONS, FREQUENCIES, TABLE_N_ROT, TABLE, SCALE = range(2, 7)

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
def rotate_head(x, table, n_rot, interleaved):
    """Rotates n_rot values of one head in place; interleaved: 1 pairs (2i, 2i+1), 0 pairs (i, i + n_rot/2)."""
    half = n_rot // 2
    if interleaved:
        _rotate(x, table, half, 0, 1, 2)
    else:
        _rotate(x, table, half, 0, half, 1)
