"""Mixtures of experts: the choice against its twin, slots that hold every row once, and the way there and back."""

import numpy as np
import pytest

from tests import reference as ref
from tests.kernels.harness import aligned, float_bits, run

experts = pytest.importorskip("llmkit.kernels.experts")


def route(logits: np.ndarray, n_used: int, *, softmax: int, normalise: int, scale: float = 1.0) -> np.ndarray:
    """(expert, weight) of each row's picks, as they lie in memory: int64 [rows][n_used][3]."""
    n_rows, n_expert = logits.shape
    padded = aligned(np.full((n_rows, -(-n_expert // 16) * 16), np.nan, np.float32))
    padded[:, :n_expert] = logits
    picks = np.full((n_rows, n_used, 3), -7, np.int64)
    run(
        experts.route, experts.ROUTE_FIELDS, n_rows, logits=padded, stride=padded.strides[0], n_expert=n_expert,
        n_used=n_used, picks=picks, picks_stride=picks.strides[0], softmax=softmax, normalise=normalise,
        scale=float_bits(scale),
    )  # fmt: skip
    return picks


def weights_of(picks: np.ndarray) -> np.ndarray:
    return picks[:, :, 1].astype(np.uint32).view(np.float32)


@pytest.mark.parametrize(("n_expert", "n_used"), [(2, 2), (8, 3), (40, 1), (128, 8)])
@pytest.mark.parametrize("softmax", [0, 1])
@pytest.mark.parametrize("normalise", [0, 1])
def test_the_choice(n_expert: int, n_used: int, softmax: int, normalise: int) -> None:
    logits = np.random.default_rng(n_expert).normal(size=(9, n_expert)).astype(np.float32) * 3
    picks = route(logits, n_used, softmax=softmax, normalise=normalise, scale=2.5)
    chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :n_used]
    np.testing.assert_array_equal(picks[:, :, 0], chosen)
    scores = ref.softmax(logits.astype(np.float64)) if softmax else logits.astype(np.float64)
    want = np.take_along_axis(scores, chosen, -1)
    want = want if softmax else ref.softmax(want)
    want = want / want.sum(-1, keepdims=True) if normalise else want
    np.testing.assert_allclose(weights_of(picks), 2.5 * want, rtol=2e-6)


def test_equal_experts_are_taken_in_order_and_nan_is_no_way_out() -> None:
    picks = route(np.zeros((1, 6), np.float32), 3, softmax=1, normalise=1)
    np.testing.assert_array_equal(picks[0, :, 0], [0, 1, 2])
    broken = route(np.full((1, 6), np.nan, np.float32), 3, softmax=1, normalise=1)
    assert sorted(broken[0, :, 0]) == [0, 1, 2]


def sort(picks: np.ndarray, n_expert: int) -> tuple[np.ndarray, np.ndarray]:
    """(slots, rows) of picks, whose third column is filled."""
    n_rows, n_used, _ = picks.shape
    slots = np.full(experts.slots_bytes(n_expert) // 8, -9, np.int64)
    rows = np.full(n_rows * n_used + 8 * n_expert, -9, np.int64)
    run(
        experts.sort, experts.SORT_FIELDS, n_rows, n_threads=2, picks=picks, picks_stride=picks.strides[0],
        n_expert=n_expert, n_used=n_used, slots=slots, rows=rows,
    )  # fmt: skip
    return slots, rows


def test_slots_hold_every_pick_once_sorted_by_expert() -> None:
    n_expert, n_used, n_rows = 12, 3, 50
    rng = np.random.default_rng(3)
    picks = np.zeros((n_rows, n_used, 3), np.int64)
    picks[:, :, 0] = [rng.permutation(n_expert - 2)[:n_used] for _ in range(n_rows)]  # two experts nobody takes
    slots, rows = sort(picks, n_expert)
    n_slots, n_chosen = slots[:2]
    first, n = slots[2 : 2 + 2 * n_expert].reshape(n_expert, 2).T
    chosen = slots[2 + 2 * n_expert :][:n_chosen]
    assert (first % 8 == 0).all()
    np.testing.assert_array_equal(n, np.bincount(picks[:, :, 0].reshape(-1), minlength=n_expert))
    np.testing.assert_array_equal(chosen, np.flatnonzero(n))
    assert n_slots == sum(-(-n // 8) * 8)
    for row, pick in np.ndindex(n_rows, n_used):
        expert, _, slot = picks[row, pick]
        assert first[expert] <= slot < first[expert] + n[expert]
        assert rows[slot] == row
    assert (rows[:n_slots] == -1).sum() == n_slots - n_rows * n_used
    assert (rows[n_slots:] == -9).all()


def test_spread_and_combine() -> None:
    n_expert, n_used, n_rows, n_cols = 5, 2, 7, 40
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(n_rows, n_expert)).astype(np.float32)
    picks = route(logits, n_used, softmax=1, normalise=1)
    slots, rows = sort(picks, n_expert)
    n_slots, width = int(slots[0]), 48
    x = aligned(rng.normal(size=(n_rows, width)).astype(np.float32))
    out = aligned(np.full((n_slots, width), np.nan, np.float32))
    run(
        experts.spread, experts.SPREAD_FIELDS, n_slots, rows=rows, x=x, x_stride=x.strides[0], y=out,
        y_stride=out.strides[0], n_bytes=4 * n_cols,
    )  # fmt: skip
    for slot in range(n_slots):
        np.testing.assert_array_equal(out[slot, :n_cols], x[rows[slot], :n_cols] if rows[slot] >= 0 else 0)
    out[:, n_cols:] = 0
    expert_of = np.zeros(n_slots)
    expert_of[picks[:, :, 2]] = picks[:, :, 0]
    scaled = aligned((out * (1 + expert_of)[:, None]).astype(np.float32))  # expert e multiplies by 1 + e
    for accumulate in (0, 1):
        y = aligned(np.ones((n_rows, width), np.float32))
        run(
            experts.combine, experts.COMBINE_FIELDS, n_rows, picks=picks, picks_stride=picks.strides[0], n_used=n_used,
            x=scaled, x_stride=scaled.strides[0], y=y, y_stride=y.strides[0], n_vectors=3, accumulate=accumulate,
        )  # fmt: skip
        factor = (weights_of(picks) * (1 + picks[:, :, 0])).sum(-1, keepdims=True)
        np.testing.assert_allclose(y[:, :n_cols], x[:, :n_cols] * factor + accumulate, rtol=1e-5, atol=1e-6)
