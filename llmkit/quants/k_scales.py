"""The 12 bytes that hold eight 6-bit scales and minima in Q4_K and Q5_K. Source: llama.cpp, get_scale_min_k4."""

from __future__ import annotations

from llmkit.kernels.jit import helper
from llmkit.simd.ops import load_u8


@helper
def scale_at(source, part):
    """Scale of 32-column part 0..7; `source` is the address of the 12 bytes."""
    if part < 4:
        return load_u8(source + part) & 63
    return (load_u8(source + part + 4) & 15) | (load_u8(source + part - 4) >> 6) << 4


@helper
def min_at(source, part):
    """Minimum of part 0..7."""
    if part < 4:
        return load_u8(source + part + 4) & 63
    return (load_u8(source + part + 4) >> 4) | (load_u8(source + part) >> 6) << 4
