"""What MXFP4 and NVFP4 share: values as scale * VALUES[q], the nearest; the first of two that are as near."""

from __future__ import annotations

from llmkit.kernels.jit import helper
from llmkit.simd.lanes import absolute, splat_i32, where
from llmkit.simd.ops import splat, vload

# The E2M1 values, doubled.
VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@helper
def nearest_codes(x, d):
    """The codes of 16 values."""
    v, best = vload(x), absolute(vload(x))
    codes = splat_i32(0)
    for i in range(1, 16):
        error = absolute(splat(VALUES[i]) * splat(d) - v)
        nearer = error < best
        best, codes = where(nearer, error, best), where(nearer, splat_i32(i), codes)
    return codes
