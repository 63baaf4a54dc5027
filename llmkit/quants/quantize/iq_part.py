"""What the quantizers of IQ2 and IQ3 share: the search for a part's scale and patterns.

A part is 16 or 32 values with one scale. Its magnitudes are scale * (1, 3, 5, ..), and each 8 (IQ2) or 4 (IQ3) of them
are a pattern of a codebook. Scales are tried side by side, a lane each. Owns the layout of a part's scratch memory.
Source: llama.cpp, ggml-quants (quantize_row_iq2_xs_impl and its like); sums are taken in its order.
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.quantize.iq_nearest import nearest_of_4, nearest_of_8
from llmkit.quants.quantize.iq_neighbours import FIRST_LOT_3, FIRST_LOT_8
from llmkit.simd.lanes import clamp, larger, nearest_int, splat_i32, square_root, vload_i32, vstore_i32
from llmkit.simd.lookup import first_lane, lane_f32, lanes_after, lookup, table_f32
from llmkit.simd.ops import (
    hmax,
    load_f32,
    load_i32,
    splat,
    store_f32,
    store_i32,
    vload,
    vload_splat,
    vstore,
    zero_bytes,
)

# A part's scratch memory, byte offsets: float32 of up to 32 values, then int32.
VALUES, WEIGHTS, ROOTS = 0, 128, 256  # magnitudes, their weights, square roots of the weights
SIGNS = 384  # one int32 for each 8 values: bit i where value i is negative
CHOSEN = 400  # entries of the best scale so far, an int32 for each pattern
OFF_GRID = 432  # for each of those, 1 where its values were not in the codebook as they were
SCALE, BEST = 464, 468  # the best scale and how good it is (float32)
COMBINATIONS, ENTRIES = 512, 1024  # for each pattern 16 int32, one for each scale that is tried
TRIED = 1536  # those scales, 16 float32
PART_BYTES = 1600

ODD_3, ODD_8 = table_f32([1, 3, 5, 7]), table_f32([1, 3, 5, 7, 9, 11, 13, 15])  # the fourth of three is not used


@helper
def prepare_search(part, n_values):
    """ROOTS of WEIGHTS; the largest of VALUES."""
    largest = vload(part + VALUES)
    for i in range(0, 4 * n_values, 64):
        vstore(part + ROOTS + i, square_root(vload(part + WEIGHTS + i)))
        largest = larger(largest, vload(part + VALUES + i))
    return hmax(largest)


@helper
def _round_8(part, pattern, inverse):
    """Of 8 values, rounded to 3 levels with each scale: the combinations, as digits of base 3."""
    combination = splat_i32(0)
    for i in range(7, -1, -1):
        value = vload_splat(part + VALUES + 32 * pattern + 4 * i)
        level = clamp(nearest_int(splat(0.5) * (inverse * value - splat(1.0))), 0, 2)
        combination = combination * splat_i32(3) + level
    return combination


@helper
def _round_4(part, pattern, inverse):
    """Of 4 values, rounded to 8 levels."""
    combination = splat_i32(0)
    for i in range(3, -1, -1):
        value = vload_splat(part + VALUES + 16 * pattern + 4 * i)
        level = clamp(nearest_int(splat(0.5) * (inverse * value - splat(1.0))), 0, 7)
        combination = combination << splat_i32(3) | level
    return combination


@helper
def find_patterns(part, n_values, size, table, inverse, scales, n_scales):
    """COMBINATIONS and ENTRIES of patterns of `size` values for n_scales <= 16 scales (lanes; inverse is 1 / scale)."""
    vstore(part + TRIED, scales)
    first_lot = table + (FIRST_LOT_3 if size == 8 else FIRST_LOT_8)
    for k in range(n_values // size):
        combinations = _round_8(part, k, inverse) if size == 8 else _round_4(part, k, inverse)
        vstore_i32(part + COMBINATIONS + 64 * k, combinations)
        values, roots = part + VALUES + 4 * size * k, part + ROOTS + 4 * size * k
        for c in range(n_scales):
            at = 64 * k + 4 * c
            entry = load_i32(table + 4 * load_i32(part + COMBINATIONS + at))
            if entry < 0:
                lots, n_lots = first_lot + 64 * (-entry >> 5), -entry & 31
                scale = vload_splat(part + TRIED + 4 * c)
                if size == 8:
                    entry = nearest_of_8(lots, n_lots, scale * ODD_3(), values, roots)
                else:
                    entry = nearest_of_4(lots, n_lots, scale * ODD_8(), values, roots)
                if entry < 0:
                    entry = load_i32(table)  # the lowest levels
            store_i32(part + ENTRIES + at, entry)


@helper
def scale_sums(part, n_values, size):
    """sum(w x q) and sum(w q^2) with the ENTRIES of each scale."""
    bits = 16 // size
    odd = ODD_3() if size == 8 else ODD_8()
    qx, q2 = splat(0.0), splat(0.0)
    for k in range(n_values // size):
        entry = vload_i32(part + ENTRIES + 64 * k)
        for i in range(size):
            at = part + 4 * (size * k + i)
            weight, q = vload_splat(at + WEIGHTS), lookup(odd, entry >> splat_i32(bits * i))
            qx = qx + weight * vload_splat(at + VALUES) * q
            q2 = q2 + weight * q * q
    return qx, q2


@helper
def keep_best(part, n_patterns, table, qx, q2, n_scales):
    """Of n_scales in order, each that is better than what is in SCALE and BEST, with CHOSEN and OFF_GRID."""
    scale, best = load_f32(part + SCALE), load_f32(part + BEST)
    chosen, ahead = -1, ~lanes_after(n_scales - 1) & (q2 > splat(0.0))
    while True:
        c = first_lane(ahead & (qx * qx > splat(best) * q2))
        if c == 16:
            break
        scale = lane_f32(qx, c) / lane_f32(q2, c)
        best = scale * lane_f32(qx, c)
        chosen, ahead = c, ahead & lanes_after(c)
    if chosen >= 0:
        store_f32(part + SCALE, scale)
        store_f32(part + BEST, best)
        for k in range(n_patterns):
            at = 64 * k + 4 * chosen
            store_i32(part + CHOSEN + 4 * k, load_i32(part + ENTRIES + at))
            on_grid = load_i32(table + 4 * load_i32(part + COMBINATIONS + at)) >= 0
            store_i32(part + OFF_GRID + 4 * k, 0 if on_grid else 1)


@helper
def try_scales(part, n_values, size, table, inverse, n_scales):
    """Keeps the best of scales given as 1 / scale; afterwards SCALE is the one that fits the patterns best."""
    find_patterns(part, n_values, size, table, inverse, splat(1.0) / inverse, n_scales)
    qx, q2 = scale_sums(part, n_values, size)
    keep_best(part, n_values // size, table, qx, q2, n_scales)


@helper
def nothing(part):
    """CHOSEN and SIGNS of values that are nothing; their scale, 0."""
    zero_bytes(part + SIGNS, OFF_GRID - SIGNS)
    return np.float32(0.0)


@helper
def start_search(part, n_patterns, table, scale, off_grid):
    """Before any scale was tried: all values the lowest level."""
    store_f32(part + SCALE, scale)
    store_f32(part + BEST, np.float32(0.0))
    for k in range(n_patterns):
        store_i32(part + CHOSEN + 4 * k, load_i32(table))
        store_i32(part + OFF_GRID + 4 * k, off_grid)


@helper
def any_off_grid(part, n_patterns):
    n_off = 0
    for k in range(n_patterns):
        n_off += load_i32(part + OFF_GRID + 4 * k)
    return n_off > 0


@helper
def fit_once_more(part, n_values, size, table, everything):
    """Rounds again with the best scale, if it is above 0: the patterns that were off the grid, or everything."""
    scale = load_f32(part + SCALE)
    if not scale > 0:
        return
    find_patterns(part, n_values, size, table, splat(np.float32(1.0) / scale), splat(scale), 1)
    for k in range(n_values // size):
        if everything or load_i32(part + OFF_GRID + 4 * k):
            store_i32(part + CHOSEN + 4 * k, load_i32(part + ENTRIES + 64 * k))
        store_i32(part + ENTRIES + 64 * k, load_i32(part + CHOSEN + 4 * k))
    qx, q2 = scale_sums(part, n_values, size)
    if lane_f32(q2, 0) > 0:
        store_f32(part + SCALE, lane_f32(qx, 0) / lane_f32(q2, 0))
