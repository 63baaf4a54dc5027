"""float32 to NVFP4: a scale (unsigned E4M3) of 16 values, largest magnitude / 6, then the nearest E2M1 values.

Importance plays no part. Source: llama.cpp, ggml-quants (quantize_row_nvfp4_ref), ggml-impl (ggml_fp32_to_ue4m3).
"""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import helper, quantizer
from llmkit.quants.quantize.e2m1 import nearest_codes
from llmkit.quants.quantize.groups import largest_magnitude
from llmkit.simd.lanes import scratch, store_low_bytes
from llmkit.simd.ops import bits_to_f32, f32_bits, load_i64, store_i64, store_u8

_codes = scratch(16)


@helper
def _e4m3(x):
    """The nearest E4M3, at most 448; the bit below the fraction decides, so halves go up."""
    if not x > 0.0:
        return 0
    bits = f32_bits(min(x, float32(448.0)))
    exponent = (bits >> 23) - 120
    if exponent <= 0:
        return min(7, int(x * float32(512.0) + float32(0.5)))
    if exponent >= 15:
        return 0x7E
    code = (exponent << 3) + ((bits >> 20) & 7) + ((bits >> 19) & 1)
    return code if code < 0x78 else 0x7E


@quantizer
def quantize(source, target, n_rows, n_cols, _importance):
    codes = _codes()
    for block in range(n_rows * n_cols // 64):
        for part in range(4):
            x, y = source + 256 * block + 64 * part, target + 36 * block
            scale = _e4m3(largest_magnitude(x, 16) / float32(6.0))
            store_u8(y + part, scale)
            store_low_bytes(codes, nearest_codes(x, bits_to_f32(scale << 20) * float32(2.0**119)))
            store_i64(y + 4 + 8 * part, load_i64(codes) | load_i64(codes + 8) << 4)
