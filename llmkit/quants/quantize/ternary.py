"""What TQ1_0 and TQ2_0 share: 256 values as -d, 0, d."""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import helper
from llmkit.quants.quantize.groups import largest_magnitude
from llmkit.simd.lanes import round_away, splat_i32, store_low_bytes, truncate
from llmkit.simd.ops import f32_to_f16_bits, splat, store_u16, vload


@helper
def ternary_codes(x, d_at, codes):
    """d (f16) to d_at, 256 codes 0, 1, 2 (bytes) to codes."""
    d = largest_magnitude(x, 256)
    inverse = splat(float32(1.0) / d if d != 0.0 else float32(0.0))
    store_u16(d_at, f32_to_f16_bits(d))
    for i in range(16):
        q = truncate(round_away(vload(x + 64 * i) * inverse)) + splat_i32(1)
        store_low_bytes(codes + 16 * i, q)
