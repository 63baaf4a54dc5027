"""float32 to TQ1_0: as TQ2_0, but five digits in base 3 to a byte (see quants/tq1_0.py). Importance plays no part.

Source: llama.cpp, ggml-quants (quantize_row_tq1_0_ref).
"""

from __future__ import annotations

from llmkit.kernels.jit import helper, quantizer
from llmkit.quants.quantize.ternary import ternary_codes
from llmkit.simd.lanes import scratch
from llmkit.simd.ops import load_u8, store_u8

_codes = scratch(256)


@helper
def _pack_digits(codes, n_bytes, n_digits, target):
    """Byte i: digits codes[i], codes[i + n_bytes], ... as a fraction of 256, rounded up; missing digits are 0."""
    for i in range(n_bytes):
        number = 0
        for n in range(5):
            number = 3 * number + (load_u8(codes + n_bytes * n + i) if n < n_digits else 0)
        store_u8(target + i, ((number & 255) * 256 + 242) // 243)


@quantizer
def quantize(source, target, n_rows, n_cols, _importance):
    codes = _codes()
    for block in range(n_rows * n_cols // 256):
        y = target + 54 * block
        ternary_codes(source + 1024 * block, y + 52, codes)
        _pack_digits(codes, 32, 5, y)
        _pack_digits(codes + 160, 16, 5, y + 32)
        _pack_digits(codes + 240, 4, 4, y + 48)
