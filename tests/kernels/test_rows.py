"""Embeddings of every tensor type, gathered rows, scales with biases, and capped logits."""

import numpy as np
import pytest

from llmkit.files.ggml_types import TYPE_IDS
from tests import reference as ref
from tests.kernels.harness import aligned, float_bits, run
from tests.make_blocks import TYPES, random_tensor

rows = pytest.importorskip("llmkit.kernels.rows")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("scale", "index"), [(1.0, np.int32), (25.298221588134766, np.int64)])
def test_embed(kind: str, scale: float, index: type) -> None:
    from llmkit.quants.registry import quant_type

    t, n_cols, indices = quant_type(TYPE_IDS[kind]), 512, np.array([6, 0, 6, 3, 9], index)
    tokens = np.minimum(indices, 6)  # no index leads out of the table
    raw = aligned(random_tensor(np.random.default_rng(3), (n_cols, 7), kind, 0.05).reshape(7, -1))
    y = aligned(np.zeros((5, n_cols), np.float32))
    run(
        rows.embed, rows.EMBED_FIELDS, 5, indices=indices, index_bytes=indices.itemsize, last=6, w=raw,
        row_bytes=raw.shape[1], n_blocks=n_cols // t.block, block_bytes=t.block_bytes, block=t.block,
        dequantize=t.dequantize, scale=float_bits(scale), y=y, y_stride=y.strides[0],
    )  # fmt: skip
    want = ref.dequantize_rows(raw, TYPE_IDS[kind])[tokens] * np.float32(scale)
    np.testing.assert_array_max_ulp(y, want, 2)


def test_gather() -> None:
    x = aligned(np.arange(60, dtype=np.float32).reshape(5, 12))
    y, chosen = aligned(np.zeros((3, 12), np.float32)), np.array([4, 0, 4], np.int64)
    run(
        rows.gather, rows.GATHER_FIELDS, 3, rows=chosen, x=x, x_stride=x.strides[0], y=y, y_stride=y.strides[0],
        n_bytes=4 * 10,
    )  # fmt: skip
    np.testing.assert_array_equal(y[:, :10], x[chosen, :10])
    assert not y[:, 10:].any()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("accumulate", [0, 1])
def test_affine(before: bool, after: bool, accumulate: int) -> None:
    rng = np.random.default_rng(5)
    x, y = (aligned(rng.normal(size=(3, 21)).astype(np.float32)) for _ in range(2))
    b, a = (aligned(rng.normal(size=21).astype(np.float32)) for _ in range(2))
    want = (x.astype(np.float64) + b * before) * np.float32(-0.3) + a * after + y * accumulate
    run(
        rows.affine, rows.AFFINE_FIELDS, 3, x=x, y=y, stride=x.strides[0], n_cols=21, before=b if before else 0,
        scale=aligned(np.array([-0.3], np.float32)), after=a if after else 0, accumulate=accumulate,
    )  # fmt: skip
    np.testing.assert_allclose(y, want, atol=1e-6)


def test_softcap() -> None:
    x = aligned(np.linspace(-400, 400, 64).astype(np.float32).reshape(1, 64))
    want = ref.soft_cap(x.astype(np.float64), 30.0)
    run(rows.softcap, rows.SOFTCAP_FIELDS, 1, x=x, stride=x.strides[0], n_vectors=4, cap=float_bits(30.0))
    np.testing.assert_allclose(x, want, atol=2e-5)


def test_clamp() -> None:
    x = aligned(np.array([[-9, -2, 0.5, 2, 3, 9]], np.float32))
    run(rows.clamp, rows.CLAMP_FIELDS, 1, x=x, stride=x.strides[0], n_cols=5, limit=float_bits(2.0))
    np.testing.assert_array_equal(x, [[-2, -2, 0.5, 2, 2, 9]])


def test_scale_rows() -> None:
    x, factors = aligned(np.ones((3, 32), np.float32)), aligned(np.array([1.0, 0.5, 3.0], np.float32))
    positions = np.array([1, 0, 7], np.int64)  # one beyond the last takes the last
    run(
        rows.scale_rows, rows.SCALE_FIELDS, 3, positions=positions, factors=factors, last=2, x=x, stride=x.strides[0],
        n_vectors=2,
    )  # fmt: skip
    np.testing.assert_array_equal(x, np.repeat([[0.5], [1.0], [3.0]], 32, axis=1))
