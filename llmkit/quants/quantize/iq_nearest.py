"""Of a list of neighbours (iq_neighbours) the entry nearest to 4 or 8 values, 16 entries at a time.

The cost of a value depends on its level alone, so it is found once for each level, and an entry's cost is a sum of
look-ups: the same products, summed in the same order, as if each entry's were computed.
Source: llama.cpp, iq2_find_best_neighbour, iq3_find_best_neighbour, iq1_find_best_neighbour2.
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.simd.lanes import splat_i32, vload_i32, where
from llmkit.simd.lookup import hmin, hmin_i32, lookup, table_i32
from llmkit.simd.ops import load_i32, splat, vload_splat

_FLOAT_MAX = np.float32(3.4028234663852886e38)
_LANES = table_i32(list(range(16)))


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
