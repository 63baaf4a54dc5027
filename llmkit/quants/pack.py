"""Whole matrices into tiles, through a type's block function."""

from __future__ import annotations

from numba import types

from llmkit.kernels.jit import entry, i64
from llmkit.simd.ops import call_kernel, zero_bytes


@entry(types.void(*[i64] * 10))
def pack_tiles(pack, source, row_bytes, block_bytes, target, tile_bytes, n_blocks, n_rows, first, last):
    """Packs tiles first <= t < last of a matrix of `n_rows` rows at `source` into `target`; missing rows become zeros.

    row_bytes, block_bytes: of the file's rows and blocks. tile_bytes: of 16 rows x one block.
    """
    for t in range(first, last):
        rows = min(16, n_rows - 16 * t)
        tile = target + t * n_blocks * tile_bytes
        if rows < 16:
            zero_bytes(tile, n_blocks * tile_bytes)
        for k in range(n_blocks):
            for row in range(rows):
                at = source + (16 * t + row) * row_bytes + k * block_bytes
                call_kernel(pack, at, tile + k * tile_bytes, row)
