"""float32 to Q4_K; the search is in parts_32."""

from __future__ import annotations

from llmkit.kernels.jit import quantizer
from llmkit.quants.quantize.groups import importance_of, whole_batch
from llmkit.quants.quantize.parts_32 import HEAD_BYTES, encode_two
from llmkit.simd.lanes import scratch
from llmkit.simd.ops import copy_bytes, load_i64, store_i64

_values, _importance, _heads, _codes = scratch(2048), scratch(2048), scratch(2 * HEAD_BYTES), scratch(512)


@quantizer
def quantize(source, target, n_rows, n_cols, importance):
    heads, codes, n_blocks = _heads(), _codes(), n_rows * n_cols // 256
    for first in range(0, n_blocks, 2):
        n = min(2, n_blocks - first)
        x = whole_batch(source + 1024 * first, 256 * n, 512, _values())
        encode_two(x, importance_of(importance, 256 * first, n_cols, 256, 512, _importance()), 15, heads, codes)
        for k in range(n):
            y, q = target + 144 * (first + k), codes + 256 * k
            copy_bytes(y, heads + HEAD_BYTES * k, HEAD_BYTES)
            for i in range(16):  # 8 bytes: values 64 j + i.. and 64 j + i + 32..
                at = q + 64 * (i >> 2) + 8 * (i & 3)
                store_i64(y + 16 + 8 * i, load_i64(at) | load_i64(at + 32) << 4)
