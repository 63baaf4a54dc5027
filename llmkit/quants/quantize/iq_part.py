"""What the quantizers of IQ2 and IQ3 share: the search for a part's scale and patterns.

A part is 16 or 32 values with one scale. Its magnitudes are scale * (1, 3, 5, ..), and each 8 (IQ2) or 4 (IQ3) of them
are a pattern of a codebook. Scales are tried side by side, a lane each. Owns the layout of a part's scratch memory.
Source: llama.cpp, ggml-quants (quantize_row_iq2_xs_impl and its like); sums are taken in its order.
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.simd.lanes import clamp, larger, nearest_int, splat_i32, square_root, vload_i32, vstore_i32, where
from llmkit.simd.lookup import (
    first_lane,
    hmin,
    hmin_i32,
    lane_f32,
    lane_i32,
    lanes_after,
    lookup,
    mask_bits,
    table_f32,
    table_i32,
)
from llmkit.simd.ops import (
    hmax,
    load_f32,
    load_i32,
    splat,
    store_f32,
    store_i32,
    store_u8,
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

_FLOAT_MAX = np.float32(3.4028234663852886e38)
ODD_3, ODD_8 = table_f32([1, 3, 5, 7]), table_f32([1, 3, 5, 7, 9, 11, 13, 15])  # the fourth of three is not used
_LANES = table_i32(list(range(16)))


@helper
def split_signs(part, x, n_values):
    """VALUES and SIGNS of x."""
    for i in range(0, n_values, 16):
        v = vload(x + 4 * i)
        positive = v >= splat(0.0)
        vstore(part + VALUES + 4 * i, where(positive, v, -v))
        bits = mask_bits(~positive)
        store_i32(part + SIGNS + i // 2, bits & 255)
        store_i32(part + SIGNS + i // 2 + 4, bits >> 8)


@helper
def make_signs_even(part, x, n_values):
    """Flips the sign that weighs least where 8 values have an odd number of negative ones: the file holds 7 signs."""
    for k in range(n_values // 8):
        signs = load_i32(part + SIGNS + 4 * k)
        odd = signs ^ signs >> 4
        odd ^= odd >> 2
        if (odd ^ odd >> 1) & 1:
            least, least_at = _FLOAT_MAX, 0
            for i in range(8 * k, 8 * k + 8):
                cost = load_f32(part + WEIGHTS + 4 * i) * load_f32(x + 4 * i) * load_f32(x + 4 * i)
                if i == 8 * k or cost < least:
                    least, least_at = cost, i
            value = part + VALUES + 4 * least_at
            store_f32(value, -load_f32(value))
            signs ^= 1 << (least_at - 8 * k)
        store_i32(part + SIGNS + 4 * k, signs & 127)


@helper
def prepare_search(part, n_values):
    """ROOTS of WEIGHTS; the largest of VALUES."""
    largest = vload(part + VALUES)
    for i in range(0, 4 * n_values, 64):
        vstore(part + ROOTS + i, square_root(vload(part + WEIGHTS + i)))
        largest = larger(largest, vload(part + VALUES + i))
    return hmax(largest)


# -- neighbours -------------------------------------------------------------------------------------------------------


@helper
def _costs(levels, value, weight):
    """weight * (level - value)^2 of each level, one after the other."""
    difference = levels - vload_splat(value)
    return vload_splat(weight) * difference * difference


@helper
def _first_best(lots, best, lot_of):
    """The entry whose cost is least, the first of equals; -1 where every cost is too large for a float32, or NaN."""
    place = where(best == splat(hmin(best)), lot_of * splat_i32(16) + _LANES(), splat_i32(1 << 30))
    first = hmin_i32(place)
    return load_i32(lots + 4 * first) if first >= 0 else -1


@helper
def nearest_of_8(lots, n_lots, levels, values, weights):
    """The entry of a list of neighbours that is nearest to 8 values: the least sum of weight * (level - value)^2."""
    c0, c1 = _costs(levels, values, weights), _costs(levels, values + 4, weights + 4)
    c2, c3 = _costs(levels, values + 8, weights + 8), _costs(levels, values + 12, weights + 12)
    c4, c5 = _costs(levels, values + 16, weights + 16), _costs(levels, values + 20, weights + 20)
    c6, c7 = _costs(levels, values + 24, weights + 24), _costs(levels, values + 28, weights + 28)
    best, lot_of = splat(_FLOAT_MAX), splat_i32(-1)
    for lot in range(n_lots):
        entry = vload_i32(lots + 64 * lot)
        cost = lookup(c0, entry) + lookup(c1, entry >> splat_i32(2)) + lookup(c2, entry >> splat_i32(4))
        cost = cost + lookup(c3, entry >> splat_i32(6)) + lookup(c4, entry >> splat_i32(8))
        cost = cost + lookup(c5, entry >> splat_i32(10)) + lookup(c6, entry >> splat_i32(12))
        cost = cost + lookup(c7, entry >> splat_i32(14))
        closer = cost < best
        best, lot_of = where(closer, cost, best), where(closer, splat_i32(lot), lot_of)
    return _first_best(lots, best, lot_of)


@helper
def nearest_of_4(lots, n_lots, levels, values, weights):
    """As nearest_of_8, for 4 values."""
    c0, c1 = _costs(levels, values, weights), _costs(levels, values + 4, weights + 4)
    c2, c3 = _costs(levels, values + 8, weights + 8), _costs(levels, values + 12, weights + 12)
    best, lot_of = splat(_FLOAT_MAX), splat_i32(-1)
    for lot in range(n_lots):
        entry = vload_i32(lots + 64 * lot)
        cost = lookup(c0, entry) + lookup(c1, entry >> splat_i32(4)) + lookup(c2, entry >> splat_i32(8))
        cost = cost + lookup(c3, entry >> splat_i32(12))
        closer = cost < best
        best, lot_of = where(closer, cost, best), where(closer, splat_i32(lot), lot_of)
    return _first_best(lots, best, lot_of)


# -- scales -----------------------------------------------------------------------------------------------------------


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
    """COMBINATIONS and ENTRIES for each of n_scales <= 16 scales (lanes; `inverse` is 1 / scale): `size` values each."""
    vstore(part + TRIED, scales)
    first_lot = table + (4 * 6576 if size == 8 else 4 * 4096)
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


@helper
def positive_scale(part, n_values, all_signs):
    """SCALE without its sign, which goes to SIGNS (`all_signs`: those of 8 values)."""
    scale = load_f32(part + SCALE)
    if scale < 0:
        scale = -scale
        for k in range(n_values // 8):
            store_i32(part + SIGNS + 4 * k, ~load_i32(part + SIGNS + 4 * k) & all_signs)
    return scale


@helper
def scale_levels(scales, d, most):
    """1 + 2 l of up to 16 scales (float32) as multiples of d: the l, 0..most."""
    return clamp(nearest_int(splat(0.5) * (splat(np.float32(1.0) / d) * vload(scales) - splat(1.0))), 0, most)


@helper
def store_scale_pairs(target, levels, n_bytes):
    """Levels of 4 bits, two a byte, the first lower."""
    for i in range(n_bytes):
        store_u8(target + i, lane_i32(levels, 2 * i) | lane_i32(levels, 2 * i + 1) << 4)


@helper
def signs_of_32(part):
    """SIGNS of 32 values in one number, 7 bits of each 8."""
    signs = 0
    for k in range(4):
        signs |= load_i32(part + SIGNS + 4 * k) << 7 * k
    return signs
