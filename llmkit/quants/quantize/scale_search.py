"""The best scale of groups whose values are scale * q: llama.cpp's make_qx_quants (q from -n_max to n_max - 1) and
make_qp_quants (positive values, q from 0 to n_max), for 16 groups in lanes.

Where the sums say so, make_qp_quants moves single codes by one after the search.
"""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import helper
from llmkit.simd.lanes import (
    absolute,
    any_lane,
    at_most,
    clamp,
    larger,
    nearest_int,
    scratch,
    splat_i32,
    store_low_bytes,
    to_f32,
    vload_i32,
    vstore_i32,
    where,
)
from llmkit.simd.ops import load_f32, load_i32, splat, vload, vstore

# What search_signed finds, 16 values each: SCALE and INVERSE (float32), OFFSET (int32):
# q + n_max is OFFSET + clamp(nearest_int(INVERSE * x), -n_max, n_max - 1). OFFSET is 0 in a group without values.
SCALE, INVERSE, OFFSET = 0, 64, 128
FOUND_BYTES = 192
SMALLEST = 1e-15  # a group whose largest magnitude is below counts as zero
_weighted = scratch(32 * 64)


@helper
def signed_largest(x, n):
    """Of lanes: the first value of largest magnitude, 0 if all are 0."""
    largest, found = splat(0.0), splat(0.0)
    for i in range(n):
        v = vload(x + 64 * i)
        more = absolute(v) > largest
        largest, found = where(more, absolute(v), largest), where(more, v, found)
    return found


@helper
def search_signed(x, w, n, n_max, found):
    """x, w: [n][16] float32; found: see above."""
    weighted, zero = _weighted(), splat(0.0)
    largest = signed_largest(x, n)
    empty = absolute(largest) < splat(SMALLEST)
    inverse = splat(-n_max) / largest
    sum_xl, sum_l2 = zero, zero
    for i in range(n):
        v, weight = vload(x + 64 * i), vload(w + 64 * i)
        vstore(weighted + 64 * i, weight * v)
        code = to_f32(clamp(nearest_int(inverse * v), -n_max, n_max - 1))
        sum_xl += weight * v * code
        sum_l2 += weight * code * code
    scale = where(sum_l2 != zero, sum_xl / sum_l2, zero)
    best, best_inverse = scale * sum_xl, inverse
    for step in range(-9, 10):
        if step == 0:
            continue
        inverse = splat(-(float32(n_max) + float32(0.1) * float32(step))) / largest
        sum_xl, sum_l2 = zero, zero
        for i in range(n):
            code = to_f32(clamp(nearest_int(inverse * vload(x + 64 * i)), -n_max, n_max - 1))
            sum_xl += vload(weighted + 64 * i) * code
            sum_l2 += vload(w + 64 * i) * code * code
        better = (sum_l2 > zero) & (sum_xl * sum_xl > best * sum_l2)
        if any_lane(better):
            best_inverse, scale = where(better, inverse, best_inverse), where(better, sum_xl / sum_l2, scale)
            best = where(better, scale * sum_xl, best)
    vstore(found + SCALE, where(empty, zero, scale))
    vstore(found + INVERSE, where(empty, zero, best_inverse))
    vstore_i32(found + OFFSET, where(empty, splat_i32(0), splat_i32(n_max)))


@helper
def _squared_error(x, w, n, inverse, n_max):
    """Of the codes x * inverse, none above n_max; n_max 0: of their low bytes, as at first in make_qp_quants."""
    total, scale = splat(0.0), splat(1.0) / inverse
    for i in range(n):
        v = vload(x + 64 * i)
        code = at_most(nearest_int(inverse * v), n_max) if n_max != 0 else nearest_int(inverse * v) & splat_i32(255)
        diff = v - scale * to_f32(code)
        total += vload(w + 64 * i) * diff * diff
    return total


@helper
def _move_codes(x, w, n, n_max, codes, sum_xl, sum_l2):
    """Moves codes while that helps, five times over all at most; the sums that are left."""
    zero = splat(0.0)
    for _ in range(5):
        changed = zero > zero
        for i in range(n):
            v, weight, code = vload(x + 64 * i), vload(w + 64 * i), vload_i32(codes + 64 * i)
            old = to_f32(code)
            xl, l2 = sum_xl - weight * v * old, sum_l2 - weight * old * old
            moved = at_most(nearest_int(v * l2 / xl), n_max)
            possible = (xl > zero) & (l2 > zero) & (moved != code)
            new = to_f32(moved)
            xl += weight * v * new
            l2 += weight * new * new
            better = possible & (xl * xl * sum_l2 > sum_xl * sum_xl * l2)
            vstore_i32(codes + 64 * i, where(better, moved & splat_i32(255), code))
            sum_xl, sum_l2 = where(better, xl, sum_xl), where(better, l2, sum_l2)
            changed = changed | better
        if not any_lane(changed):
            break
    return where(sum_l2 > zero, sum_xl / sum_l2, zero)


@helper
def search_positive(x, w, n, n_max, scale_at, codes):
    """x, w: [n][16] float32; scale_at: 16 float32; codes: int32 [n][16].

    llama.cpp keeps codes in bytes, which a negative value (a group almost without weight has one) makes large: so here.
    """
    zero = top = splat(0.0)
    for i in range(n):
        top = larger(top, vload(x + 64 * i))
    empty = top < splat(SMALLEST)
    inverse = splat(n_max) / top
    best = _squared_error(x, w, n, inverse, 0)
    for step in range(-4, 5):
        if step == 0:
            continue
        other = splat(float32(0.1) * float32(step) + float32(n_max)) / top
        error = _squared_error(x, w, n, other, n_max)
        better = error < best
        best, inverse = where(better, error, best), where(better, other, inverse)
    sum_xl, sum_l2 = zero, zero
    for i in range(n):
        v, weight = vload(x + 64 * i), vload(w + 64 * i)
        code = at_most(nearest_int(inverse * v), n_max)
        vstore_i32(codes + 64 * i, code & splat_i32(255))
        sum_xl += weight * v * to_f32(code)
        sum_l2 += weight * to_f32(code) * to_f32(code)
    scale = _move_codes(x, w, n, n_max, codes, sum_xl, sum_l2)
    vstore(scale_at, where(empty, zero, scale))
    for i in range(n):
        vstore_i32(codes + 64 * i, where(empty, splat_i32(0), vload_i32(codes + 64 * i)))


@helper
def square_weights(x, n, w):
    """What make_qx_quants takes where there is no importance: x^2."""
    for i in range(0, 64 * n, 64):
        vstore(w + i, vload(x + i) * vload(x + i))


@helper
def largest_scale(scales):
    """The first of 16 scales of largest magnitude, 0 if all are 0."""
    largest = found = float32(0.0)
    for j in range(16):
        scale = load_f32(scales + 4 * j)
        if abs(scale) > largest:
            largest, found = abs(scale), scale
    return found


@helper
def signed_codes(x, d, n_max, found, codes):
    """16 codes q + n_max, bytes: x / d rounded, or where d is 0 what search_signed found."""
    v = vload(x)
    if d != 0.0:
        q = clamp(nearest_int(v / splat(d)), -n_max, n_max - 1) + splat_i32(n_max)
    else:
        q = found_codes(v, load_f32(found + INVERSE), load_i32(found + OFFSET), n_max)
    store_low_bytes(codes, q)


@helper
def found_codes(v, inverse, offset, n_max):
    return clamp(nearest_int(splat(inverse) * v), -n_max, n_max - 1) + splat_i32(offset)
