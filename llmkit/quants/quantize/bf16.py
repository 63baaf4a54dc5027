"""float32 to bfloat16: the upper 16 bits, nearest even; NaN stays NaN. Source: llama.cpp, ggml_compute_fp32_to_bf16."""

from __future__ import annotations

from llmkit.kernels.jit import quantizer
from llmkit.simd.lanes import splat_i32, vload_i32, where
from llmkit.simd.ops import load_u32, store_u16, vstore_u16


@quantizer
def quantize(source, target, n_rows, n_cols, _importance):
    n = n_rows * n_cols
    whole = n // 16 * 16
    half, one, by_16 = splat_i32(0x7FFF), splat_i32(1), splat_i32(16)
    for i in range(0, whole, 16):
        bits = vload_i32(source + 4 * i)
        upper = bits >> by_16
        rounded = (bits + half + (upper & one)) >> by_16
        is_nan = (bits & splat_i32(0x7FFFFFFF)) > splat_i32(0x7F800000)
        vstore_u16(target + 2 * i, where(is_nan, upper | splat_i32(64), rounded))
    for i in range(whole, n):
        bits = load_u32(source + 4 * i)
        if bits & 0x7FFFFFFF > 0x7F800000:
            store_u16(target + 2 * i, bits >> 16 | 64)
        else:
            store_u16(target + 2 * i, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
