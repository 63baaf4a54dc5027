"""Activations against their twins, from far below to far above the range where they bend."""

from typing import Any

import numpy as np
import pytest

from tests import reference as ref
from tests.kernels.harness import aligned, run

activation = pytest.importorskip("llmkit.kernels.activation")


@pytest.mark.parametrize(("n_rows", "n_vectors"), [(1, 1), (3, 33), (2, 100)])
@pytest.mark.parametrize("name", list(activation.FUNCTIONS))
def test_activations(name: str, n_rows: int, n_vectors: int) -> None:
    rng = np.random.default_rng(n_vectors)
    gate = aligned((rng.normal(size=(n_rows, 16 * n_vectors)) * 8).astype(np.float32))
    gate[0, :8] = [0, -0.0, 1e-20, -1e-20, 60, -60, 1e4, -1e4]
    up, y = aligned((rng.normal(size=gate.shape) * 5).astype(np.float32)), aligned(np.zeros_like(gate))
    twin, gated = getattr(ref, name), name not in ("gelu", "relu2")
    values: dict[str, Any] = {"gate": gate, "up": up} if gated else {"gate": gate}
    run(
        activation.activate, activation.FIELDS, n_rows, function=activation.FUNCTIONS[name], y=y,
        stride=gate.strides[0], n_vectors=n_vectors, **values,
    )  # fmt: skip
    want = twin(*(value.astype(np.float64) for value in values.values()))
    assert np.isfinite(y).all()
    # gelu's tanh form cancels where it is nearly zero: the bound is relative to the gate there.
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-5)
