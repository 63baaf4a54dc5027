"""Rows of F16 and BF16 to float32 and back, 16 values at a time.

Source: IEEE 754; ggml (fp32_to_bf16: to the nearest, ties to even, NaN stays NaN and becomes quiet).
"""

from __future__ import annotations

from numba import types

from llmkit.kernels.jit import entry, i64
from llmkit.simd.ops import (
    f16_bits_to_f32,
    f32_to_f16_bits,
    load_f32,
    load_i32,
    load_u16,
    store_f32,
    store_i32,
    store_u16,
    vload,
    vload_f16,
    vstore,
    vstore_f16,
)


@entry(types.void(i64, i64, i64))
def f16_to_f32(source, target, n):
    """n values at address `source` to float32 at `target`."""
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        vstore(target + 4 * i, vload_f16(source + 2 * i))
    for i in range(whole, n):
        store_f32(target + 4 * i, f16_bits_to_f32(load_u16(source + 2 * i)))


@entry(types.void(i64, i64, i64))
def f32_to_f16(source, target, n):
    """n float32 values at `source` to the nearest F16, ties to even; beyond 65504 to infinity."""
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        vstore_f16(target + 2 * i, vload(source + 4 * i))
    for i in range(whole, n):
        store_u16(target + 2 * i, f32_to_f16_bits(load_f32(source + 4 * i)))


@entry(types.void(i64, i64, i64))
def bf16_to_f32(source, target, n):
    """n values at `source` to float32 at `target`."""
    for i in range(n):
        store_i32(target + 4 * i, load_u16(source + 2 * i) << 16)


@entry(types.void(i64, i64, i64))
def f32_to_bf16(source, target, n):
    """n float32 values at `source` to the nearest BF16, ties to even."""
    for i in range(n):
        bits = load_i32(source + 4 * i)
        if (bits & 0x7FFFFFFF) > 0x7F800000:
            store_u16(target + 2 * i, ((bits >> 16) & 0xFFFF) | 64)
        else:
            store_u16(target + 2 * i, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF)
