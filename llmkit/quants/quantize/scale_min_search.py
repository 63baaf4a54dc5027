"""The best scale and minimum of groups whose values are scale * q + min, q = 0..n_max: llama.cpp's make_qkx2_quants and
make_qkx3_quants, for 16 groups in lanes.

A candidate divides the range (less the minimum found so far) into somewhat fewer or more than n_max steps, rounds, and
fits scale and minimum to the codes by weighted least squares; the smallest weighted error wins.
"""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import helper
from llmkit.simd.lanes import (
    absolute,
    any_lane,
    clamp,
    larger,
    nearest_int,
    scratch,
    smaller,
    to_f32,
    where,
)
from llmkit.simd.ops import splat, vload, vstore

# What is found, 16 float32 each: a value is SCALE * q - MINIMUM; q is that of `codes_of` with INVERSE and LOW.
SCALE, MINIMUM, INVERSE, LOW = 0, 64, 128, 192
FOUND_BYTES = 256
_codes = scratch(32 * 64)


@helper
def codes_of(v, n_max):
    """The codes of values in steps."""
    return clamp(nearest_int(v), 0, n_max)


@helper
def search(x, w, n, n_max, r_min, r_delta, n_step, mad, found):
    """x, w: [n][16] float32; candidates of r_min + r_delta * i + n_max steps, i = 0..n_step; found: see above.

    mad: absolute instead of squared differences.
    """
    codes, zero, top = _codes(), splat(0.0), splat(n_max)
    low = high = vload(x)
    sum_w = vload(w)
    sum_x = sum_w * low
    for i in range(1, n):
        v, weight = vload(x + 64 * i), vload(w + 64 * i)
        low, high = smaller(v, low), larger(v, high)
        sum_w += weight
        sum_x += weight * v
    low = where(low > zero, zero, low)
    inverse = top / (high - low)
    scale = splat(1.0) / inverse
    best = zero
    for i in range(n):
        v = vload(x + 64 * i)
        diff = scale * to_f32(codes_of(inverse * (v - low), n_max)) + low - v
        best += vload(w + 64 * i) * (absolute(diff) if mad else diff * diff)
    best_inverse, best_low = inverse, low
    for step in range(n_step + 1):
        inverse = splat(r_min + r_delta * float32(step) + float32(n_max)) / (high - low)
        sum_l, sum_l2, sum_xl = zero, zero, zero
        for i in range(n):
            v = vload(x + 64 * i)
            code = to_f32(codes_of(inverse * (v - low), n_max))
            vstore(codes + 64 * i, code)
            weighted = vload(w + 64 * i) * code
            sum_l += weighted
            sum_l2 += weighted * code
            sum_xl += weighted * v
        det = sum_w * sum_l2 - sum_l * sum_l
        fit_scale = (sum_w * sum_xl - sum_x * sum_l) / det
        fit_low = (sum_l2 * sum_x - sum_l * sum_xl) / det
        above = fit_low > zero
        fit_scale, fit_low = where(above, sum_xl / sum_l2, fit_scale), where(above, zero, fit_low)
        error = zero
        for i in range(n):
            diff = fit_scale * vload(codes + 64 * i) + fit_low - vload(x + 64 * i)
            error += vload(w + 64 * i) * (absolute(diff) if mad else diff * diff)
        better = (det > zero) & (error < best)
        if any_lane(better):
            best_inverse, best_low = where(better, inverse, best_inverse), where(better, low, best_low)
            best, scale, low = where(better, error, best), where(better, fit_scale, scale), where(better, fit_low, low)
    vstore(found + SCALE, scale)
    vstore(found + MINIMUM, -low)
    vstore(found + INVERSE, best_inverse)
    vstore(found + LOW, best_low)
