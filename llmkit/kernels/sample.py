"""What sampling does over a whole vocabulary, one pass each: the largest logits, masking, exponentials.

Python calls these by address, with float32 vectors of any length; nothing beyond their ends is touched. The bits depend
on nothing but the values. Ids are the columns of a row of logits.
"""

from __future__ import annotations

import math

from numba import types

from llmkit.kernels.jit import entry, helper, i64
from llmkit.simd.ops import (
    add,
    exp,
    hmax,
    hsum,
    keep_bits,
    load_f32,
    load_i32,
    splat,
    store_f32,
    store_i64,
    sub,
    vload,
    vmax,
    vstore,
    where_above,
)

f32, f64 = types.float32, types.float64

BLOCK = 256  # columns whose largest is kept
_RUN = 1024  # columns summed in float32
_LOWEST = -87.0  # e^-87 is the smallest normal float32, about; below it a weight is 0


@helper
def _block_max(x, n):
    """Largest of n float32, NaN if any is."""
    a, b, c, d = splat(-math.inf), splat(-math.inf), splat(-math.inf), splat(-math.inf)
    whole = n // 64 * 64
    for i in range(0, whole, 64):
        at = x + 4 * i
        a, b = vmax(a, vload(at)), vmax(b, vload(at + 64))
        c, d = vmax(c, vload(at + 128)), vmax(d, vload(at + 192))
    for i in range(whole, n):
        a = vmax(a, splat(load_f32(x + 4 * i)))
    return hmax(vmax(vmax(a, b), vmax(c, d)))


@entry(f32(i64, i64, i64))
def scan(x, n, maxima):
    """The largest of each BLOCK of x into maxima; the largest of all. NaN where any value is."""
    largest = splat(-math.inf)
    for block in range((n + BLOCK - 1) // BLOCK):
        here = _block_max(x + 4 * block * BLOCK, min(BLOCK, n - block * BLOCK))
        store_f32(maxima + 4 * block, here)
        largest = vmax(largest, splat(here))
    return hmax(largest)


@entry(i64(i64, i64, i64, f32, i64))
def collect(x, n, maxima, bound, ids):
    """Writes the ascending ids (int64) of the values that reach `bound`; how many there are.

    A block whose largest does not reach it is not looked at.
    """
    found = 0
    for block in range((n + BLOCK - 1) // BLOCK):
        if load_f32(maxima + 4 * block) >= bound:
            for i in range(block * BLOCK, min(n, (block + 1) * BLOCK)):
                if load_f32(x + 4 * i) >= bound:
                    store_i64(ids + 8 * found, i)
                    found += 1
    return found


@entry(types.void(i64, i64, i64, i64))
def keep_allowed(x, n, allowed, y):
    """y = x where bit i mod 32 of word i div 32 of `allowed` (uint32) is set, -inf elsewhere."""
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        bits = load_i32(allowed + 4 * (i // 32)) >> (i % 32)
        vstore(y + 4 * i, keep_bits(vload(x + 4 * i), bits, -math.inf))
    for i in range(whole, n):
        bit = (load_i32(allowed + 4 * (i // 32)) >> (i % 32)) & 1
        store_f32(y + 4 * i, load_f32(x + 4 * i) if bit != 0 else f32(-math.inf))


@helper
def _weights16(x, shift):
    """e^(x - shift), 0 where that is below e^-87."""
    distance = sub(x, shift)
    return where_above(exp(distance), distance, _LOWEST)


@entry(f64(i64, i64, f32, i64))
def weights(x, n, largest, y):
    """y = e^(x - largest), 0 for -inf; their sum, float64. `largest` is finite and not below any value."""
    shift, total = splat(largest), 0.0
    whole = n // 16 * 16
    for first in range(0, whole, _RUN):
        run = splat(0.0)
        for i in range(first, min(first + _RUN, whole), 16):
            w = _weights16(vload(x + 4 * i), shift)
            vstore(y + 4 * i, w)
            run = add(run, w)
        total += hsum(run)
    for i in range(whole, n):
        w = hmax(_weights16(splat(load_f32(x + 4 * i)), shift))
        store_f32(y + 4 * i, w)
        total += w
    return total
