"""Whether an array of float32 holds only numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmkit.kernels.jit import entry, i64
from llmkit.simd.lanes import any_lane, splat_i32, vload_i32
from llmkit.simd.ops import load_i32

_INFINITE = 0x7F800000  # the bits of infinity without its sign; those of NaN are above
_RUN = 1024  # values looked at between two branches


@entry(i64(i64, i64))
def _first_not_finite(x, n):
    magnitude, infinite = splat_i32(0x7FFFFFFF), splat_i32(_INFINITE)
    start = 0
    while start + _RUN <= n:
        bad = (vload_i32(x + 4 * start) & magnitude) >= infinite
        for i in range(start + 16, start + _RUN, 16):
            bad = bad | ((vload_i32(x + 4 * i) & magnitude) >= infinite)
        if any_lane(bad):
            break
        start += _RUN
    for i in range(start, n):
        if (load_i32(x + 4 * i) & 0x7FFFFFFF) >= _INFINITE:
            return i
    return -1


def first_not_finite(values: NDArray[np.float32]) -> int:
    """Where the first NaN or infinite value is in a C-contiguous float32 array, flattened; -1 where there is none."""
    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    return int(_first_not_finite(values.ctypes.data, values.size))
