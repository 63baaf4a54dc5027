"""float32 to MXFP4: the exponent of the largest magnitude, less 2, then the nearest E2M1 values.

Importance plays no part. Source: llama.cpp, ggml-quants (quantize_row_mxfp4_ref).
"""

from __future__ import annotations

from numpy import float64

from llmkit.kernels.jit import helper, quantizer
from llmkit.quants.quantize.e2m1 import nearest_codes
from llmkit.quants.quantize.groups import largest_magnitude
from llmkit.simd.lanes import splat_i32, store_low_bytes
from llmkit.simd.ops import bits_to_f32, f64_bits, store_u8


@helper
def _floor_log2(x):
    """floor(log2f(x)) of C, x > 0: the exponent, but one more where the float32 logarithm is rounded up to an integer.

    That happens within ln 2 * ulp / 2 of a power of two, in units of its 2^-24; `ulp` is that of the logarithm there.
    """
    bits = f64_bits(float64(x))
    power = (bits >> 52) - 1022  # of two, the one above x
    below = ((1 << 52) - (bits & ((1 << 52) - 1))) >> 29
    size, binade = abs(power) - (1 if power > 0 else 0), 0
    while size >> binade > 1:
        binade += 1
    limit = ((1 << binade) * 45426) >> 16 if size > 0 and power != 0 else 0  # 45426 / 2^16: ln 2
    return power if below <= limit else power - 1


@quantizer
def quantize(source, target, n_rows, n_cols, _importance):
    for block in range(n_rows * n_cols // 32):
        x, y = source + 128 * block, target + 17 * block
        largest = largest_magnitude(x, 32)
        exponent = (_floor_log2(largest) + 125) & 255 if largest > 0.0 else 0
        store_u8(y, exponent)
        d = bits_to_f32((exponent - 1) << 23 if exponent > 1 else 0x00200000 << exponent)
        low, high = nearest_codes(x, d), nearest_codes(x + 64, d)
        store_low_bytes(y + 1, low | high << splat_i32(4))
