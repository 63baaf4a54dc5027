"""16 groups of values as lanes, value i of each group in vector i; and whole batches, and weights by importance."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numpy import float32

from llmkit.kernels.jit import helper
from llmkit.simd import emitter as em
from llmkit.simd.lanes import absolute, square_root
from llmkit.simd.ops import copy_bytes, hmax, load_f32, splat, vload, vmax, vstore, zero_bytes
from llmkit.simd.vector import operation

Value = Any


@operation(types.void, *[types.int64] * 3)
def _transpose(e: em.Emitter, source: Value, stride: Value, target: Value) -> None:
    """16 rows of 16 float32, `stride` bytes apart, into columns at target: a step for each bit of places."""
    rows = [e.load(em.F32X16, e.b.add(source, e.b.mul(stride, em.I64(r)))) for r in range(16)]
    for bit in (1, 2, 4, 8):
        upper = ir.Constant(em.I32X16, [c + 16 - bit if c & bit else c for c in range(16)])
        lower = ir.Constant(em.I32X16, [c + 16 if c & bit else c + bit for c in range(16)])
        for r in (r for r in range(16) if not r & bit):
            a, b = rows[r], rows[r + bit]
            rows[r], rows[r + bit] = e.b.shuffle_vector(a, b, upper), e.b.shuffle_vector(a, b, lower)
    for r, row in enumerate(rows):
        e.store(row, target, 64 * r)


@helper
def to_lanes(source, n, target):
    """16 groups of n float32 (a multiple of 16), one after the other, to target [n][16]."""
    for i in range(0, n, 16):
        _transpose(source + 4 * i, 4 * n, target + 64 * i)


@helper
def whole_batch(source, n, n_batch, buffer):
    """Where n_batch values can be read: `source`, or a buffer with its n values and zeros after them."""
    if n == n_batch:
        return source
    copy_bytes(buffer, source, 4 * n)
    zero_bytes(buffer + 4 * n, 4 * (n_batch - n))
    return buffer


@helper
def importance_of(importance, first, n_cols, n_block, n_batch, buffer):
    """Importance of n_batch values from value `first` of the rows on, into the buffer; 0 where there is none."""
    if importance == 0:
        return 0
    for i in range(0, n_batch, n_block):
        copy_bytes(buffer + 4 * i, importance + 4 * ((first + i) % n_cols), 4 * n_block)
    return buffer


@helper
def largest_magnitude(x, n):
    """Of n float32, a multiple of 16."""
    largest = absolute(vload(x))
    for i in range(64, 4 * n, 64):
        largest = vmax(largest, absolute(vload(x + i)))
    return hmax(largest)


@helper
def sum_of_squares(x, n):
    """In order, in float32."""
    total = float32(0.0)
    for i in range(n):
        v = load_f32(x + 4 * i)
        total += v * v
    return total


@helper
def importance_weights(x, sigma2, importance, n, w):
    """w = importance * sqrt(sigma2 + x^2) for n values; all may be lanes or not."""
    for i in range(0, 4 * n, 64):
        v = vload(x + i)
        vstore(w + i, vload(importance + i) * square_root(splat(sigma2) + v * v))


@helper
def magnitude_weights(x, n, w):
    """Of lanes: w = root mean square of the group + |x|."""
    total = splat(0.0)
    for i in range(n):
        v = vload(x + 64 * i)
        total += v * v
    mean = square_root(total / splat(n))
    for i in range(n):
        vstore(w + 64 * i, mean + absolute(vload(x + 64 * i)))


@helper
def sums_of(w, n, target):
    """Of lanes: the sums of n values, in order, into 16 float32."""
    total = splat(0.0)
    for i in range(n):
        total += vload(w + 64 * i)
    vstore(target, total)
