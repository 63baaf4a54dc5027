"""For each combination of levels: its place in a codebook, or the codebook's entries next to it.

Owns the tables' layout, int32: first one number for each combination, whose index is its levels as digits of base
n_levels, the first column lowest. Not negative: the combination is in the codebook, and the number is its entry: the
levels of the columns (2 bits each of 8 columns, or 4 bits of 4) with the place in the codebook above them, from bit 16.
Negative: minus (32 first + n), where n lots of 16 entries begin at lot `first`, nearest first, equally near ones in the
codebook's order; the last lot is filled up with the list's first entry, which a strict comparison never finds twice.
Lots are 64 bytes and begin behind the combinations, on a multiple of 64 bytes.
Near are the entries at the `n_distances` smallest distances there are. Source: llama.cpp, iq2xs_init_impl and
iq3xs_init_impl, which sort by distance and place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types, void
from numpy.typing import NDArray

from llmkit.kernels.jit import entry, i64

# Bytes in front of the lots: of 8 columns of 3 levels, and of 4 columns of 8 levels.
FIRST_LOT_3, FIRST_LOT_8 = (64 * -(-n // 16) for n in (3**8, 8**4))
_FARTHEST = 4 * 7 * 7  # of 4 columns of 8 levels; 8 columns of 3 levels are nearer


@entry(i64(types.uint8[:, ::1], i64, i64, types.int32[::1], types.int32[::1]))
def _fill(columns, n_levels, n_distances, first_of, lists):
    """Fills first_of (the combinations) and, where it is long enough, lists; returns the lots needed."""
    n_cols, n_grid = columns.shape
    bits = 16 // n_cols
    distance, n_at = np.zeros(n_grid, np.uint8), np.zeros(_FARTHEST + 1, np.int32)
    n_lots = 0
    for combination in range(n_levels**n_cols):
        distance[:] = 0
        rest = combination
        for column in range(n_cols):
            level = np.uint8(rest % n_levels)
            rest //= n_levels
            for place in range(n_grid):
                apart = np.uint8(columns[column, place] - level)
                distance[place] += np.uint8(apart * apart)
        n_at[:] = 0
        for place in range(n_grid):
            n_at[distance[place]] += 1
        if n_at[0]:
            continue
        farthest, n_found, n_near = 0, 0, 0
        while n_found < n_distances and farthest < _FARTHEST:
            farthest += 1
            n_found += n_at[farthest] > 0
            n_near += n_at[farthest]
        n = (n_near + 15) // 16
        first_of[combination] = -(32 * n_lots + n)
        if 16 * (n_lots + n) <= len(lists):
            at = 16 * n_lots
            for near in range(1, farthest + 1):
                if n_at[near]:
                    for place in range(n_grid):
                        if distance[place] == near:
                            pattern = 0
                            for column in range(n_cols):
                                pattern |= np.int64(columns[column, place]) << bits * column
                            lists[at] = pattern | place << 16
                            at += 1
            for filled in range(at, 16 * (n_lots + n)):
                lists[filled] = lists[16 * n_lots]
        n_lots += n
    return n_lots


def neighbours(grid: NDArray[np.uint16], n_cols: int, n_levels: int, n_distances: int) -> NDArray[np.int32]:
    """The table of a codebook (iq_grids) of n_cols columns; 64-byte aligned. Takes some hundredths of a second."""
    bits = 16 // n_cols
    fields = grid[None, :] >> np.arange(0, 16, bits, dtype=np.uint16)[:, None]
    columns = np.ascontiguousarray(fields & ((1 << bits) - 1)).astype(np.uint8)
    n_combinations = n_levels**n_cols
    first = -(-n_combinations // 16) * 16
    on_grid = np.zeros(n_combinations, np.int32)
    digits = n_levels ** np.arange(n_cols)
    n_lots = _fill(columns, n_levels, n_distances, on_grid, np.empty(0, np.int32))
    space = np.zeros(first + 16 * n_lots + 16, np.int32)
    table = space[-space.ctypes.data % 64 // 4 :][: first + 16 * n_lots]
    _fill(columns, n_levels, n_distances, table[:n_combinations], table[first:])
    table[digits @ columns] = grid.astype(np.int32) | np.arange(len(grid), dtype=np.int32) << 16
    return table


def table_quantizer(grid: NDArray[np.uint16], n_cols: int, n_levels: int, n_distances: int) -> Callable[[Any], Any]:
    """As jit.quantizer, for a kernel that has the address of a codebook's table as its last argument."""

    def decorate(function: Any) -> Callable[[int, int, int, int, int], None]:
        compiled, table = entry(void(*[i64] * 6))(function), neighbours(grid, n_cols, n_levels, n_distances)

        def quantize(source: int, target: int, n_rows: int, n_cols: int, importance: int) -> None:
            compiled(source, target, n_rows, n_cols, importance, table.ctypes.data)

        return quantize

    return decorate
