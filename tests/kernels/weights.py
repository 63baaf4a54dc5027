"""A random matrix of any tensor type and its product with activations, as the engine computes it.

Owns the calls of packing, of quantising activations and of the matmul kernel. Judges nothing.
"""

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from llmkit.files.ggml_types import TYPE_IDS
from llmkit.kernels import activation_tile, matmul, quantize
from llmkit.quants.pack import pack_tiles
from llmkit.quants.registry import quant_type
from tests.kernels.harness import Floats, address, aligned, run
from tests.make_blocks import random_tensor

QUANTIZE = {
    activation_tile.F32: quantize.to_f32,
    activation_tile.Q8_32: quantize.to_q8_32,
    activation_tile.Q8_256: quantize.to_q8_256,
}
Run = Callable[..., None]


class Weights:
    """A matrix of one type: the file's bytes (random unless given) and the tiles packed from them."""

    def __init__(self, kind: str, n_rows: int, n_cols: int, raw: NDArray[np.uint8] | None = None) -> None:
        self.type_id, self.n_rows, self.n_cols = TYPE_IDS[kind], n_rows, n_cols
        self.type = quant_type(self.type_id)
        if raw is None:
            raw = random_tensor(np.random.default_rng(n_rows), (n_cols, n_rows), kind, 0.05)
        self.raw = aligned(raw.reshape(n_rows, -1))
        self.n_blocks, self.n_tiles = n_cols // self.type.tile_block, -(-n_rows // 16)
        self.tiles = aligned(np.zeros(self.type.packed_bytes(n_rows, n_cols), np.uint8))
        self.pack()

    def pack(self) -> None:
        """Fills `tiles` from `raw`."""
        block_bytes = self.type.row_bytes(self.type.tile_block)
        pack_tiles(
            self.type.pack, address(self.raw), self.raw.shape[1], block_bytes, address(self.tiles),
            self.type.tile_bytes, self.n_blocks, self.n_rows, 0, self.n_tiles,
        )  # fmt: skip

    def quantize(self, x: Floats) -> NDArray[np.uint8]:
        """x [n, n_cols] in the groups that this type's tiles read."""
        n, kind = len(x), self.type.activation
        rows = aligned(x)
        out = aligned(np.zeros(activation_tile.buffer_bytes(kind, self.n_cols, n), np.uint8))
        group_bytes = activation_tile.group_bytes(kind, self.n_cols)
        run(
            QUANTIZE[kind], quantize.FIELDS, n, x=rows, x_stride=rows.strides[0], n_cols=self.n_cols, y=out,
            group_bytes=group_bytes,
        )  # fmt: skip
        return out

    def multiply(self, x: NDArray[np.uint8], y: Floats, n: int, run: Run = run, **more: object) -> None:
        """Writes the product of quantised x and this matrix to y, rows of whole tiles; `more`: fields of the kernel."""
        group_bytes = activation_tile.group_bytes(self.type.activation, self.n_cols)
        run(
            matmul.matmul, matmul.FIELDS, n, tile=self.type.multiply, w=self.tiles,
            tile_stride=self.n_blocks * self.type.tile_bytes, n_tiles=self.n_tiles, n_blocks=self.n_blocks, x=x,
            group_bytes=group_bytes, y=y, y_stride=y.strides[0], **more,
        )  # fmt: skip

    def times(self, x: Floats, bias: Floats | None = None, onto: Floats | None = None) -> Floats:
        """The kernel's product [n, n_rows]."""
        n = len(x)
        y = aligned(np.zeros((-(-n // 8) * 8, 16 * self.n_tiles), np.float32))
        if onto is not None:
            y[:n, : self.n_rows] = onto
        padded = aligned(np.zeros(16 * self.n_tiles, np.float32))
        padded[: self.n_rows] = 0 if bias is None else bias
        self.multiply(self.quantize(x), y, n, bias=0 if bias is None else padded, accumulate=int(onto is not None))
        return y[:n, : self.n_rows].copy()


def decode(weights: Weights) -> Floats:
    """The rows as embeddings read them."""
    t = weights.type
    out = aligned(np.zeros((weights.n_rows, weights.n_cols), np.float32))
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(t.dequantize)
    for row in range(weights.n_rows):
        for block in range(weights.n_cols // t.block):
            function(address(weights.raw[row]) + block * t.block_bytes, address(out[row]) + 4 * block * t.block, 0)
    return out
