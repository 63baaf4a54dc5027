"""Log-softmax and KL divergence against float64 twins, with NaN where nothing may count."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kernels.harness import aligned, run

ls = pytest.importorskip("llmkit.kernels.log_softmax")
kl = pytest.importorskip("llmkit.kernels.kl_divergence")

SHAPES = [(1, 1), (3, 5), (2, 16), (4, 33), (2, 1024), (3, 1025), (2, 5000)]
Doubles = NDArray[np.float64]


def logits(n_rows: int, n_cols: int, seed: int, spread: float = 4.0) -> NDArray[np.float32]:
    """Rows that end in NaN up to a multiple of 16 columns."""
    rows = np.full((n_rows, -(-n_cols // 16) * 16), np.nan, np.float32)
    rows[:, :n_cols] = np.random.default_rng(seed).normal(size=(n_rows, n_cols)) * spread
    return aligned(rows)


def log_probs(x: NDArray[np.float32], n_cols: int) -> Doubles:
    """The twin: float64, the whole row at once."""
    wide = x[:, :n_cols].astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    return np.asarray(wide - top - np.log(np.exp(wide - top).sum(axis=1, keepdims=True)))


def statistics(x: NDArray[np.float32], n_cols: int, n_threads: int = 1) -> Doubles:
    y = aligned(np.full((len(x), ls.STATS), np.nan))
    run(ls.log_softmax, ls.FIELDS, len(x), n_threads, x=x, x_stride=x.strides[0], n_cols=n_cols, y=y)
    return y


def packed_rows(x: NDArray[np.float32], stats: Doubles, n_cols: int) -> NDArray[np.uint16]:
    packed = aligned(np.full((len(x), 4 + n_cols + 16), 7, np.uint16))
    run(
        kl.pack_log_probs, kl.PACK_FIELDS, len(x), x=x, x_stride=x.strides[0], x_stats=stats, n_cols=n_cols,
        packed=packed, packed_stride=packed.strides[0],
    )  # fmt: skip
    return packed


def unpacked(packed: NDArray[np.uint16], n_cols: int) -> Doubles:
    """log p = scale q + lowest."""
    head = packed[:, :4].copy().view(np.float32).astype(np.float64)
    return np.asarray(head[:, :1] * packed[:, 4 : 4 + n_cols] + head[:, 1:])


def packed_kl(
    x: NDArray[np.float32], stats: Doubles, packed: NDArray[np.uint16], targets: list[int], n_cols: int
) -> Doubles:
    y = aligned(np.full((len(x), kl.PACKED_STATS), np.nan))
    run(
        kl.packed_kl_divergence, kl.PACKED_KL_FIELDS, len(x), x=x, x_stride=x.strides[0], x_stats=stats,
        n_cols=n_cols, packed=packed, packed_stride=packed.strides[0], targets=np.array(targets, np.int64), y=y,
    )  # fmt: skip
    return y


@pytest.mark.parametrize(("n_rows", "n_cols"), SHAPES)
def test_log_softmax(n_rows: int, n_cols: int) -> None:
    x = logits(n_rows, n_cols, 1)
    y = statistics(x, n_cols)
    wide = x[:, :n_cols].astype(np.float64)
    np.testing.assert_array_equal(y[:, ls.LARGEST], wide.max(axis=1))
    np.testing.assert_array_equal(y[:, ls.AT], wide.argmax(axis=1))
    want = np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1))
    np.testing.assert_allclose(y[:, ls.LOG_SUM], want, atol=1e-6)


def test_of_equal_logits_the_first_column_counts() -> None:
    x = aligned(np.zeros((1, 2048), np.float32))
    x[0, [700, 1500]] = 3.0
    assert statistics(x, 2048)[0, ls.AT] == 700


def test_threads_do_not_change_the_bits() -> None:
    x = logits(7, 3001, 2)
    one, three = statistics(x, 3001), statistics(x, 3001, n_threads=3)
    np.testing.assert_array_equal(one.view(np.uint64), three.view(np.uint64))


def test_large_logits_stay_finite() -> None:
    """Case 62: the maximum is taken off first."""
    x = aligned(np.array([[1e4, -1e4, 9999.0] + [-3e38] * 13], np.float32))
    largest, at, log_sum = statistics(x, 16)[0]
    assert (largest, at) == (1e4, 0)
    assert log_sum == pytest.approx(math.log1p(math.exp(-1)), abs=1e-6)


def test_nan_is_told() -> None:
    x = logits(2, 1100, 3)
    x[1, 1050] = np.nan
    y = statistics(x, 1100)
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1, ls.LARGEST])


@pytest.mark.parametrize("value", [1e-300, 1e-9, 0.5, 0.70710678, 1.0, 1.5, 2.0, 49152.3, 1e300])
def test_log(value: float) -> None:
    assert ls.log_f64(value) == pytest.approx(math.log(value), rel=4e-16, abs=1e-300)


@pytest.mark.parametrize(("n_rows", "n_cols"), SHAPES)
def test_kl_divergence(n_rows: int, n_cols: int) -> None:
    x, base = logits(n_rows, n_cols, 4), logits(n_rows, n_cols, 5)
    y = kl_of(x, base, n_cols)
    log_base = log_probs(base, n_cols)
    want = (np.exp(log_base) * (log_base - log_probs(x, n_cols))).sum(axis=1)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def kl_of(x: NDArray[np.float32], base: NDArray[np.float32], n_cols: int) -> Doubles:
    y = aligned(np.full(len(x), np.nan))
    run(
        kl.kl_divergence, kl.KL_FIELDS, len(x), x=x, x_stride=x.strides[0], x_stats=statistics(x, n_cols), base=base,
        base_stride=base.strides[0], base_stats=statistics(base, n_cols), n_cols=n_cols, y=y,
    )  # fmt: skip
    return y


def test_equal_rows_diverge_by_exactly_nothing() -> None:
    x = logits(5, 5003, 6, spread=30.0)
    assert not kl_of(x, x.copy(), 5003).any()


@pytest.mark.parametrize(("n_rows", "n_cols"), SHAPES)
@pytest.mark.parametrize("spread", [0.1, 4.0, 20.0])
def test_packed_rows_are_llama_cpps(n_rows: int, n_cols: int, spread: float) -> None:
    """Its own arithmetic in float32: the range ends 16 below the largest; 65,535 steps; nearest."""
    x = logits(n_rows, n_cols, 7, spread)
    packed = packed_rows(x, statistics(x, n_cols), n_cols)
    values = x[:, :n_cols]
    top = values.max(axis=1)
    low = np.maximum(values.min(axis=1), top - np.float32(16))
    scale = (top - low) / np.float32(65535)
    steps = np.rint((values - low[:, None]) / np.where(scale > 0, scale, 1)[:, None])
    want = np.where(values > low[:, None], steps, 0)
    assert np.abs(packed[:, 4 : 4 + n_cols] - want).max() <= 1
    head = packed[:, :4].copy().view(np.float32)
    np.testing.assert_allclose(head[:, 0], scale, rtol=1e-6)
    np.testing.assert_allclose(head[:, 1], log_probs(x, n_cols).max(axis=1) + (low - top), atol=2e-6)


@pytest.mark.parametrize(("n_rows", "n_cols"), SHAPES)
def test_packed_kl_divergence(n_rows: int, n_cols: int) -> None:
    x, base = logits(n_rows, n_cols, 8), logits(n_rows, n_cols, 9)
    packed = packed_rows(base, statistics(base, n_cols), n_cols)
    packed[:, 4 + n_cols :] = 65535
    targets = [n_cols - 1 - i % n_cols for i in range(n_rows)]
    y = packed_kl(x, statistics(x, n_cols), packed, targets, n_cols)
    log_base = unpacked(packed, n_cols)
    terms = np.exp(log_base) * (log_base - log_probs(x, n_cols))
    np.testing.assert_allclose(
        y[:, kl.DIVERGENCE], np.where(log_base > -16, terms, 0).sum(axis=1), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(y[:, kl.BASE_AT], log_base.argmax(axis=1))
    np.testing.assert_allclose(y[:, kl.BASE_TARGET], log_base[np.arange(n_rows), targets], atol=2e-6)


def test_a_row_of_equal_logits_packs_to_zeros() -> None:
    x: Any = aligned(np.full((1, 32), 2.5, np.float32))
    packed = packed_rows(x, statistics(x, 32), 32)
    assert not packed[:, 4:36].any()
    np.testing.assert_allclose(unpacked(packed, 32), -math.log(32), rtol=1e-6)
