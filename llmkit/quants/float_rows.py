"""Rows of F16 and BF16 to float32, 16 values at a time where `dequantize` of these types takes one.

Source: IEEE 754.
"""

from __future__ import annotations

from numba import types

from llmkit.kernels.jit import entry, i64
from llmkit.simd.ops import f16_bits_to_f32, load_u16, store_f32, store_i32, vload_f16, vstore


@entry(types.void(i64, i64, i64))
def f16_to_f32(source, target, n):
    """n values at address `source` to float32 at `target`."""
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        vstore(target + 4 * i, vload_f16(source + 2 * i))
    for i in range(whole, n):
        store_f32(target + 4 * i, f16_bits_to_f32(load_u16(source + 2 * i)))


@entry(types.void(i64, i64, i64))
def bf16_to_f32(source, target, n):
    """n values at `source` to float32 at `target`."""
    for i in range(n):
        store_i32(target + 4 * i, load_u16(source + 2 * i) << 16)
