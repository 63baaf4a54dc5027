"""The codebook searches of the IQ types, the slow and obvious way."""

import numpy as np
from numpy.typing import NDArray

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def levels_of_grid(grid: NDArray[np.uint16], n_cols: int) -> NDArray[np.int64]:
    """The levels of each entry of a codebook, [n_entries, n_cols]."""
    bits = 16 // n_cols
    return np.array([[int(entry) >> bits * column & ((1 << bits) - 1) for column in range(n_cols)] for entry in grid])


def neighbours_of(levels: list[int], grid_levels: NDArray[np.int64], n_distances: int) -> list[int]:
    """Places in the codebook, sorted by distance and place, as far as the n_distances smallest distances; [] on it."""
    distances = ((grid_levels - np.array(levels)) ** 2).sum(axis=1).tolist()
    near = sorted(set(distances))[:n_distances]
    if near[0] == 0:
        return []
    return [place for _, place in sorted((d, place) for place, d in enumerate(distances) if d in near)]


def nearest_iq4_level(x: np.float32) -> int:
    """The nearest of IQ4_VALUES as llama.cpp finds it: by float32 distances to the two around x, the upper if equal."""
    if x <= IQ4_VALUES[0]:
        return 0
    if x >= IQ4_VALUES[-1]:
        return 15
    upper = next(i for i, value in enumerate(IQ4_VALUES) if x < value)
    to_lower, to_upper = x - np.float32(IQ4_VALUES[upper - 1]), np.float32(IQ4_VALUES[upper]) - x
    return upper - 1 if to_lower < to_upper else upper
