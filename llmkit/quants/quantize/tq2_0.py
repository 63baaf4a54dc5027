"""float32 to TQ2_0: d = largest magnitude, q = x / d rounded, 0, 1, 2 in two bits. Importance plays no part.

Source: llama.cpp, ggml-quants (quantize_row_tq2_0_ref).
"""

from __future__ import annotations

from llmkit.kernels.jit import quantizer
from llmkit.quants.quantize.packing import pack_pairs_256
from llmkit.quants.quantize.ternary import ternary_codes
from llmkit.simd.lanes import scratch

_codes = scratch(256)


@quantizer
def quantize(source, target, n_rows, n_cols, _importance):
    codes = _codes()
    for block in range(n_rows * n_cols // 256):
        y = target + 66 * block
        ternary_codes(source + 1024 * block, y + 64, codes)
        pack_pairs_256(codes, y)
