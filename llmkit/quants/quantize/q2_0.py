"""float32 to Q2_0: d = largest magnitude, q = x / d rounded, halves away from zero. Importance plays no part.

Source: llama.cpp, ggml-quants (quantize_row_q2_0_ref).
"""

from __future__ import annotations

from numpy import float32

from llmkit.kernels.jit import quantizer
from llmkit.quants.quantize.groups import largest_magnitude
from llmkit.simd.lanes import clamp, round_away, scratch, splat_i32, store_low_bytes, truncate
from llmkit.simd.ops import f32_to_f16_bits, load_i64, splat, store_u8, store_u16, vload

_codes = scratch(64)


@quantizer
def quantize(source, target, n_rows, n_cols, _importance):
    codes = _codes()
    for block in range(n_rows * n_cols // 64):
        x, y = source + 256 * block, target + 18 * block
        d = largest_magnitude(x, 64)
        inverse = splat(float32(1.0) / d if d > 0.0 else float32(0.0))
        store_u16(y, f32_to_f16_bits(d))
        for i in range(4):
            q = truncate(round_away(vload(x + 64 * i) * inverse)) + splat_i32(1)
            store_low_bytes(codes + 16 * i, clamp(q, 0, 3))
        for i in range(8):  # value 4 i + j is pair j of byte i
            pairs = load_i64(codes + 8 * i)
            pairs = pairs | pairs >> 6
            pairs = pairs | pairs >> 12
            store_u8(y + 2 + 2 * i, pairs & 255)
            store_u8(y + 3 + 2 * i, pairs >> 32 & 255)
