"""Norms against their twins, on widths that do and do not fill a vector."""

import numpy as np
import pytest

from tests import reference as ref
from tests.kernels.harness import aligned, float_bits, run

norm = pytest.importorskip("llmkit.kernels.norm")


@pytest.mark.parametrize(
    ("n_rows", "n_groups", "n_cols"), [(1, 1, 16), (3, 1, 576), (2, 5, 33), (4, 2, 128), (1, 3, 7)]
)
@pytest.mark.parametrize("accumulate", [0, 1])
def test_rms_norm(n_rows: int, n_groups: int, n_cols: int, accumulate: int) -> None:
    rng = np.random.default_rng(n_cols)
    x = aligned(rng.normal(size=(n_rows, n_groups * n_cols)).astype(np.float32) * 30)
    weight = aligned(rng.normal(size=n_cols).astype(np.float32))
    y = aligned(rng.normal(size=x.shape).astype(np.float32))
    want = ref.rms_norm(x.reshape(n_rows, n_groups, n_cols).astype(np.float64), weight, 1e-5).reshape(x.shape)
    want = want + y if accumulate else want
    run(
        norm.rms_norm, norm.FIELDS, n_rows, x=x, x_stride=x.strides[0], n_groups=n_groups, n_cols=n_cols,
        weight=weight, eps=float_bits(1e-5), y=y, y_stride=y.strides[0], accumulate=accumulate,
    )  # fmt: skip
    np.testing.assert_allclose(y, want, rtol=2e-6, atol=1e-6)


def test_a_small_input_keeps_its_epsilon() -> None:
    x = aligned(np.full((1, 32), 1e-6, np.float32))
    y, weight = aligned(np.zeros_like(x)), aligned(np.ones(32, np.float32))
    run(
        norm.rms_norm, norm.FIELDS, 1, x=x, x_stride=128, n_groups=1, n_cols=32, weight=weight,
        eps=float_bits(1e-5), y=y, y_stride=128,
    )  # fmt: skip
    np.testing.assert_allclose(y, 1e-6 / np.sqrt(1e-12 + 1e-5), rtol=1e-6)


@pytest.mark.parametrize(
    ("n_rows", "n_groups", "n_cols"), [(1, 1, 16), (3, 1, 576), (2, 5, 33), (4, 2, 128), (1, 3, 7)]
)
@pytest.mark.parametrize("parts", ["weight and bias", "weight", "nothing", "weight a group", "in place"])
def test_layer_norm(n_rows: int, n_groups: int, n_cols: int, parts: str) -> None:
    rng = np.random.default_rng(n_cols)
    x = aligned(3 + rng.normal(size=(n_rows, n_groups * n_cols)).astype(np.float32) * 30)
    weight = aligned(rng.normal(size=(n_groups, n_cols)).astype(np.float32), n_guard=16)
    bias = aligned(rng.normal(size=n_cols).astype(np.float32), n_guard=16) if parts == "weight and bias" else None
    y = x if parts == "in place" else aligned(np.full(x.shape, np.nan, np.float32))
    used = weight if parts == "weight a group" else weight[0]
    groups = x.reshape(n_rows, n_groups, n_cols).astype(np.float64)
    want = ref.layer_norm(groups, None if parts == "nothing" else used, bias, 1e-5).reshape(x.shape)
    run(
        norm.layer_norm, norm.LAYER_FIELDS, n_rows, x=x, x_stride=x.strides[0], n_groups=n_groups, n_cols=n_cols,
        weight=0 if parts == "nothing" else weight, eps=float_bits(1e-5), y=y, y_stride=y.strides[0],
        bias=0 if bias is None else bias, weight_stride=4 * n_cols if parts == "weight a group" else 0,
    )  # fmt: skip
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=5e-6)
