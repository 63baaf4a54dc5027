"""float32 to half precision, nearest even, overflow to infinity."""

from __future__ import annotations

from llmkit.kernels.jit import quantizer
from llmkit.simd.ops import f32_to_f16_bits, load_f32, store_u16, vload, vstore_f16


@quantizer
def quantize(source, target, n_rows, n_cols, _importance):
    n = n_rows * n_cols
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        vstore_f16(target + 2 * i, vload(source + 4 * i))
    for i in range(whole, n):
        store_u16(target + 2 * i, f32_to_f16_bits(load_f32(source + 4 * i)))
