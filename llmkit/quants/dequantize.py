"""Runs of blocks of any type to float32, through a type's block function."""

from __future__ import annotations

from numba import types

from llmkit.kernels.jit import entry, i64
from llmkit.simd.ops import call_kernel


@entry(types.void(*[i64] * 6))
def dequantize_blocks(dequantize, source, block_bytes, target, target_bytes, n_blocks):
    """n_blocks blocks at `source`, block_bytes apart, to float32 at `target`, target_bytes apart.

    dequantize: address of the type's block function.
    """
    for k in range(n_blocks):
        call_kernel(dequantize, source + k * block_bytes, target + k * target_bytes, 0)
