"""Log-probabilities of the raw distribution."""

import numpy as np
import pytest

from llmkit.engine.generation.logprobs import sampled_logprobs, token_logprobs
from llmkit.errors import NumericsError, UsageError
from llmkit.sampling.candidates import Candidates
from tests.reference.sampling import log_softmax


def test_they_are_the_log_softmax() -> None:
    logits = np.random.default_rng(1).normal(0, 5, 3000).astype(np.float32)
    expected = log_softmax(logits)
    got = token_logprobs(logits, 17, 3000)
    assert got.chosen.id == 17
    assert got.chosen.logprob == pytest.approx(expected[17], abs=1e-6)
    np.testing.assert_allclose([t.logprob for t in got.top], expected[[t.id for t in got.top]], atol=1e-6)
    assert sum(np.exp(t.logprob) for t in got.top) == pytest.approx(1, abs=1e-6)


def test_the_best_are_sorted_and_equal_ones_by_id() -> None:
    logits = np.array([0, 3, 1, 3, 2, 3, 0], dtype=np.float32)
    assert [t.id for t in token_logprobs(logits, 0, 5).top] == [1, 3, 5, 4, 2]
    assert token_logprobs(logits, 0, 0).top == ()
    assert len(token_logprobs(logits, 0, 100).top) == 7


def test_huge_logits_stay_finite() -> None:
    """Case 62: log-softmax by max subtraction."""
    logits = np.array([1e4, -1e4, 1e4, 0], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        top = token_logprobs(logits, 1, 4).top
    assert [t.id for t in top] == [0, 2, 3, 1]
    np.testing.assert_allclose([t.logprob for t in top], [-np.log(2), -np.log(2), -1e4 - np.log(2), -2e4 - np.log(2)])


def test_none_is_above_zero() -> None:
    logits = np.full(50_000, -50, dtype=np.float32)
    logits[7] = 50
    assert token_logprobs(logits, 7, 1).chosen.logprob <= 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_logits_are_a_named_error(bad: float) -> None:
    with pytest.raises(NumericsError):
        token_logprobs(np.array([0, bad, 1], dtype=np.float32), 0, 1)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(UsageError, match="logprobs"):
        token_logprobs(np.zeros(3, dtype=np.float32), 0, -1)


def test_those_that_sampling_left() -> None:
    left = Candidates(np.array([3, 8, 9]), np.array([0.0, np.log(3), -np.inf], dtype=np.float32))
    found = sampled_logprobs(left, 3, 10)
    assert found.chosen.logprob == pytest.approx(np.log(0.25))
    assert [top.id for top in found.top] == [8, 3]
    assert np.exp(found.top[0].logprob) == pytest.approx(0.75)
    assert sampled_logprobs(left, 8, 0).top == ()
