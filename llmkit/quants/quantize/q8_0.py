"""float32 to Q8_0: d = largest magnitude / 127, q = x / d, halves rounded away from zero. Importance plays no part.

Source: llama.cpp, ggml-quants (quantize_row_q8_0_ref).
"""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import quantizer
from llmkit.quants.quantize.groups import largest_magnitude
from llmkit.simd.lanes import round_away, store_low_bytes, truncate
from llmkit.simd.ops import f32_to_f16_bits, splat, store_u16, vload


@quantizer
def quantize(source, target, n_rows, n_cols, _importance):
    for block in range(n_rows * n_cols // 32):
        x, y = source + 128 * block, target + 34 * block
        low, high = vload(x), vload(x + 64)
        d = largest_magnitude(x, 32) / float32(127.0)
        inverse = splat(float32(1.0) / d if d != 0.0 else 0.0)
        store_u16(y, f32_to_f16_bits(d))
        store_low_bytes(y + 2, truncate(round_away(low * inverse)))
        store_low_bytes(y + 18, truncate(round_away(high * inverse)))
