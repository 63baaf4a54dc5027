"""Matrix products of every tensor type against decoded weights and the same 8-bit activations; and equal bits."""

import numpy as np
import pytest
from numpy.typing import NDArray

from llmkit.files.ggml_types import TYPE_IDS
from tests import reference as ref
from tests.kernels.harness import Floats, address, aligned, run
from tests.make_blocks import TYPES, random_tensor

matmul = pytest.importorskip("llmkit.kernels.matmul")
quantize = pytest.importorskip("llmkit.kernels.quantize")
activations = pytest.importorskip("llmkit.kernels.activation_tile")


class Weights:
    """A random matrix of one type: the file's bytes and the tiles packed from them."""

    def __init__(self, kind: str, n_rows: int, n_cols: int) -> None:
        from llmkit.quants.pack import pack_tiles
        from llmkit.quants.registry import quant_type

        self.type_id, self.n_rows, self.n_cols = TYPE_IDS[kind], n_rows, n_cols
        self.type = quant_type(self.type_id)
        raw = random_tensor(np.random.default_rng(n_rows), (n_cols, n_rows), kind, 0.05)
        self.raw = aligned(raw.reshape(n_rows, -1))
        self.n_blocks, self.n_tiles = n_cols // self.type.tile_block, -(-n_rows // 16)
        self.tiles = aligned(np.zeros(self.type.packed_bytes(n_rows, n_cols), np.uint8))
        block_bytes = self.type.row_bytes(self.type.tile_block)
        pack_tiles(
            self.type.pack, address(self.raw), self.raw.shape[1], block_bytes, address(self.tiles),
            self.type.tile_bytes, self.n_blocks, n_rows, 0, self.n_tiles,
        )  # fmt: skip

    def times(self, x: Floats, bias: Floats | None = None, onto: Floats | None = None) -> Floats:
        """The kernel's product [n, n_rows]."""
        n, kind = len(x), self.type.activation
        group_bytes = activations.group_bytes(kind, self.n_cols)
        packed_x = aligned(np.zeros(activations.buffer_bytes(kind, self.n_cols, n), np.uint8))
        kernel = (quantize.to_f32, quantize.to_q8_32, quantize.to_q8_256)[kind]
        run(
            kernel, quantize.FIELDS, n, x=x, x_stride=x.strides[0], n_cols=self.n_cols, y=packed_x,
            group_bytes=group_bytes,
        )  # fmt: skip
        y = aligned(np.zeros((-(-n // 8) * 8, 16 * self.n_tiles), np.float32))
        if onto is not None:
            y[:n, : self.n_rows] = onto
        padded = aligned(np.zeros(16 * self.n_tiles, np.float32))
        padded[: self.n_rows] = 0 if bias is None else bias
        run(
            matmul.matmul, matmul.FIELDS, n, tile=self.type.multiply, w=self.tiles,
            tile_stride=self.n_blocks * self.type.tile_bytes, n_tiles=self.n_tiles, n_blocks=self.n_blocks, x=packed_x,
            group_bytes=group_bytes, y=y, y_stride=y.strides[0], bias=0 if bias is None else padded,
            accumulate=int(onto is not None),
        )  # fmt: skip
        return y[:n, : self.n_rows].copy()


def inputs(n: int, n_cols: int) -> Floats:
    """Rows of very different sizes, with an outlier in each."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, n_cols)) * 10.0 ** rng.integers(-3, 4, (n, 1))
    x[np.arange(n), rng.integers(0, n_cols, n)] *= 20
    return aligned(x.astype(np.float32))


def columns(kind: str, n_blocks: int) -> int:
    return n_blocks * (256 if kind.endswith("_K") else 32)


def size(x: NDArray[np.floating], weights: Weights) -> NDArray[np.float64]:
    """|x| |W|: what rounding errors are relative to."""
    decoded = ref.dequantize_rows(weights.raw, weights.type_id).astype(np.float64)
    return np.asarray(np.abs(x.astype(np.float64)) @ np.abs(decoded).T)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("n", "n_rows", "n_blocks"), [(1, 16, 1), (3, 5, 3), (8, 48, 2), (17, 100, 5)])
def test_product(kind: str, n: int, n_rows: int, n_blocks: int) -> None:
    weights = Weights(kind, n_rows, columns(kind, n_blocks))
    x = inputs(n, weights.n_cols)
    want = ref.matmul(x.astype(np.float64), weights.raw, weights.type_id, act_quant=True)
    error = np.abs(weights.times(x) - want)
    assert (error <= 1e-6 * size(x, weights)).all()


@pytest.mark.parametrize("kind", TYPES)
def test_bias_and_residual(kind: str) -> None:
    weights = Weights(kind, 37, columns(kind, 2))
    x, rng = inputs(5, weights.n_cols), np.random.default_rng(2)
    bias, onto = rng.normal(size=37).astype(np.float32), rng.normal(size=(5, 37)).astype(np.float32)
    np.testing.assert_array_equal(weights.times(x, bias), weights.times(x) + bias)
    np.testing.assert_array_equal(weights.times(x, onto=onto), weights.times(x) + onto)
    np.testing.assert_array_equal(weights.times(x, bias, onto), weights.times(x) + bias + onto)


@pytest.mark.parametrize("kind", TYPES)
def test_one_token_and_many_give_equal_bits(kind: str) -> None:
    weights = Weights(kind, 100, columns(kind, 3))
    x = inputs(19, weights.n_cols)
    together = weights.times(x)
    for first, last in ((0, 1), (3, 5), (4, 11), (18, 19), (2, 18)):
        part = weights.times(aligned(x[first:last]))
        np.testing.assert_array_equal(part.view(np.uint32), together[first:last].view(np.uint32))


@pytest.mark.parametrize("kind", TYPES)
def test_decoded_rows_are_those_of_the_gguf_package(kind: str) -> None:
    """What embeddings read. Equal, but for the order of a product and a sum of two halves."""
    import ctypes

    weights = Weights(kind, 7, columns(kind, 3))
    want = ref.dequantize_rows(weights.raw, weights.type_id)
    got, t = aligned(np.zeros_like(want)), weights.type
    decode = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(t.dequantize)
    for row in range(7):
        for block in range(weights.n_cols // t.block):
            decode(address(weights.raw[row]) + block * t.block_bytes, address(got[row]) + 4 * block * t.block, 0)
    np.testing.assert_array_max_ulp(got, want, 1) if kind.endswith(("_K", "_1")) else np.testing.assert_array_equal(
        got, want
    )
