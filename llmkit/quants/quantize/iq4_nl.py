"""float32 to IQ4_NL: 32 values d * one of 16. Source: llama.cpp, ggml-quants (quantize_iq4_nl)."""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import quantizer
from llmkit.quants.quantize.iq4 import find_scale, store_levels
from llmkit.quants.quantize.iq_weights import sum_of_squares
from llmkit.simd.lanes import scratch
from llmkit.simd.ops import f32_to_f16_bits, store_u16

_weights = scratch(128)


@quantizer
def quantize(source, target, n_rows, n_cols, importance):
    weights = _weights()
    for block in range(n_rows * n_cols // 32):
        x, y = source + 128 * block, target + 18 * block
        weigh = importance + 128 * block % (4 * n_cols) if importance else 0
        sigma2 = sum_of_squares(x, 32) * np.float32(2.0 / 32.0)
        d = find_scale(weights, x, weigh, sigma2)
        store_u16(y, f32_to_f16_bits(d))
        store_levels(y + 2, x, np.float32(1.0) / d if d != 0 else np.float32(0.0))
