"""float32 to Q4_1; see blocks_32."""

from __future__ import annotations

from llmkit.kernels.jit import quantizer
from llmkit.quants.quantize.blocks_32 import BATCH, batch_weights, encode_with_min, pack_nibbles
from llmkit.quants.quantize.groups import whole_batch
from llmkit.simd.lanes import scratch
from llmkit.simd.ops import load_u16, store_u16

_values, _weights, _codes = scratch(2048), scratch(2048), scratch(512)
_d, _low, _sigma = scratch(32), scratch(32), scratch(4)


@quantizer
def quantize(source, target, n_rows, n_cols, importance):
    codes, d, low, n_blocks = _codes(), _d(), _low(), n_rows * n_cols // 32
    for first in range(0, n_blocks, BATCH):
        n, weights = min(BATCH, n_blocks - first), 0
        x = whole_batch(source + 128 * first, 32 * n, 512, _values())
        if importance != 0:
            weights = _weights()
            batch_weights(x, source, first, n, n_cols, importance, _sigma(), weights)
        encode_with_min(x, weights, 15, d, low, codes)
        for k in range(n):
            y = target + 20 * (first + k)
            store_u16(y, load_u16(d + 2 * k))
            store_u16(y + 2, load_u16(low + 2 * k))
            pack_nibbles(codes + 32 * k, y + 4)
