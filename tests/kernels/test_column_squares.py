"""Sums of squares of columns against NumPy, dense and by expert."""

import numpy as np
import pytest

from llmkit.kernels import column_squares as cs
from tests.kernels.harness import aligned, run

X = np.random.default_rng(4).normal(size=(24, 37)).astype(np.float32) * 100


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("n_cols", [1, 16, 37])
def test_all_rows(n_threads: int, n_cols: int) -> None:
    x, sums, counts = aligned(X), np.full(n_cols, 5.0), np.array([2], np.int64)
    for _ in range(2):  # added to what is there
        run(
            cs.column_squares, cs.FIELDS, 23, n_threads, x=x, x_stride=x.strides[0], n_cols=n_cols, sums=sums,
            counts=counts, n_expert=1,
        )  # fmt: skip
    want = 5.0 + 2 * (X[:23, :n_cols].astype(np.float64) ** 2).sum(axis=0)
    np.testing.assert_allclose(sums, want, rtol=1e-14)
    assert counts.tolist() == [48]


def test_rows_of_experts() -> None:
    x, sums, counts = aligned(X), np.zeros((4, 37)), np.zeros(4, np.int64)
    # Expert 0 has rows 0 .. 4, expert 2 rows 8 .. 18; 1 and 3 none. What is left of groups of 8 is empty.
    slots = np.array([24, 2, *(0, 5), *(8, 0), *(8, 11), *(24, 0), 0, 2, -1, -1], np.int64)
    run(
        cs.column_squares, cs.FIELDS, 24, 2, x=x, x_stride=x.strides[0], n_cols=37, sums=sums, counts=counts,
        slots=slots, n_expert=4,
    )  # fmt: skip
    squares = X.astype(np.float64) ** 2
    want = np.array([squares[:5].sum(axis=0), np.zeros(37), squares[8:19].sum(axis=0), np.zeros(37)])
    np.testing.assert_allclose(sums, want, rtol=1e-14)
    assert counts.tolist() == [5, 0, 11, 0]
