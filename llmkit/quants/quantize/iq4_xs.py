"""float32 to IQ4_XS: 256 values d * s * one of 16, s (6 bits, from -32) of 32 values.

Source: llama.cpp, ggml-quants (quantize_iq4_xs).
"""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper, quantizer
from llmkit.quants.quantize.iq4 import find_scale, store_levels
from llmkit.quants.quantize.iq_weights import sum_of_squares
from llmkit.simd.lanes import scratch
from llmkit.simd.lookup import nearest_int1
from llmkit.simd.ops import f32_to_f16_bits, load_f32, load_u8, load_u16, store_f32, store_u8, store_u16, zero_bytes

_weights, _scales = scratch(128), scratch(32)


@helper
def _store_scale(y, i, s):
    """s + 32 of 32 values: the lower 4 bits, two a byte, and the upper 2, eight in 16 bits."""
    store_u16(y + 2, load_u16(y + 2) | (s + 32) >> 4 << 2 * i)
    at = y + 4 + i // 2
    store_u8(at, load_u8(at) | ((s + 32) & 15) << 4 * (i & 1))


@quantizer
def quantize(source, target, n_rows, n_cols, importance):
    weights, scales = _weights(), _scales()
    for block in range(n_rows * n_cols // 256):
        x, y = source + 1024 * block, target + 136 * block
        weigh = importance + 1024 * block % (4 * n_cols) if importance else 0
        sigma2 = sum_of_squares(x, 256) * np.float32(2.0 / 256.0)
        largest = np.float32(0.0)
        for i in range(8):
            scale = find_scale(weights, x + 128 * i, weigh + 128 * i if weigh else 0, sigma2)
            store_f32(scales + 4 * i, scale)
            if abs(scale) > abs(largest):
                largest = scale
        zero_bytes(y, 8)
        d = -largest / np.float32(32.0)
        store_u16(y, f32_to_f16_bits(d))
        inverse = np.float32(1.0) / d if d != 0 else np.float32(0.0)
        for i in range(8):
            s = max(-32, min(31, nearest_int1(inverse * load_f32(scales + 4 * i))))
            _store_scale(y, i, s)
            scale = d * np.float32(s)
            store_levels(y + 8 + 16 * i, x + 128 * i, np.float32(1.0) / scale if scale != 0 else np.float32(0.0))
