"""Matrix products of every tensor type against decoded weights and the same 8-bit activations; and equal bits."""

import numpy as np
import pytest
from numpy.typing import NDArray

from llmkit.files.ggml_types import GGML_TYPES, TYPE_IDS
from tests import reference as ref
from tests.kernels.harness import Floats, aligned
from tests.kernels.weights import Weights, decode
from tests.make_blocks import TYPES


def inputs(n: int, n_cols: int) -> Floats:
    """Rows of very different sizes, with an outlier in each."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, n_cols)) * 10.0 ** rng.integers(-3, 4, (n, 1))
    x[np.arange(n), rng.integers(0, n_cols, n)] *= 20
    return aligned(x.astype(np.float32))


def columns(kind: str, n_blocks: int) -> int:
    """`n_blocks` blocks of the weights, or of the activations where those are larger."""
    type_id = TYPE_IDS[kind]
    return n_blocks * max(GGML_TYPES[type_id].block_size, ref.act_block_size(type_id) or 32)


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
    for first, last in ((0, 1), (3, 5), (0, 3), (6, 11), (11, 19), (10, 19), (18, 19), (2, 18)):
        part = weights.times(aligned(x[first:last]))
        np.testing.assert_array_equal(part.view(np.uint32), together[first:last].view(np.uint32))


@pytest.mark.parametrize("kind", TYPES)
def test_decoded_rows_are_those_of_the_gguf_package(kind: str) -> None:
    """Any bytes: every scale and every code, and d of every size."""
    n_cols, type = columns(kind, 3), GGML_TYPES[TYPE_IDS[kind]]
    shape = (64, n_cols // type.block_size * type.type_size)
    weights = Weights(kind, 64, n_cols, np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8))
    with np.errstate(all="ignore"):
        want = ref.dequantize_rows(weights.raw, weights.type_id)
    got = decode(weights)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    assert numbers.mean() > 0.8
    np.testing.assert_array_equal(got[numbers].view(np.uint32), want[numbers].view(np.uint32))
