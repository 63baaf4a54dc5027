"""float32 to Q1_0: d = mean magnitude, a set bit for values of 0 and above. Importance plays no part.

Source: llama.cpp, ggml-quants (quantize_row_q1_0_ref).
"""

from __future__ import annotations

from llmkit.kernels.jit import quantizer
from llmkit.quants.quantize.groups import to_lanes, whole_batch
from llmkit.simd.lanes import absolute, mask_bits, scratch
from llmkit.simd.ops import load_u16, splat, store_u16, vload, vstore_f16

_values, _lanes, _d = scratch(8192), scratch(8192), scratch(32)


@quantizer
def quantize(source, target, n_rows, n_cols, _importance):
    lanes, d, n_blocks = _lanes(), _d(), n_rows * n_cols // 128
    for first in range(0, n_blocks, 16):
        n = min(16, n_blocks - first)
        x = whole_batch(source + 512 * first, 128 * n, 2048, _values())
        to_lanes(x, 128, lanes)
        total = splat(0.0)
        for i in range(128):
            total += absolute(vload(lanes + 64 * i))
        vstore_f16(d, total / splat(128.0))
        for k in range(n):
            y = target + 18 * (first + k)
            store_u16(y, load_u16(d + 2 * k))
            for i in range(8):
                store_u16(y + 2 + 2 * i, mask_bits(vload(x + 512 * k + 64 * i) >= splat(0.0)))
