"""Perplexity against its definition, on models where each number can be computed the obvious way."""

import math
from pathlib import Path

import numpy as np
import pytest

from llmkit.evaluate.perplexity import Estimate, perplexity
from llmkit.evaluate.windows import chunks, strided
from tests.evaluate.contexts import next_log_probs, small_context
from tests.make_models import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("ppl") / "m.gguf", n_vocab=1500)


TOKENS = np.random.default_rng(1).integers(0, 1500, 700).astype(np.int32)


def test_it_is_e_to_the_mean_of_minus_log_p(model: Path) -> None:
    windows = chunks(TOKENS, 50, 3, 9)
    with small_context(model) as ctx:
        steps = [(e.ppl, e.ppl_error, e.n) for e in perplexity(ctx, windows, 2)]
        nll = [-next_log_probs(ctx, [9, *TOKENS[50 * i + 1 : 50 * i + 50].tolist()])[25:] for i in range(3)]
    for i, (ppl, error, n) in enumerate(steps, start=1):
        values = np.concatenate(nll[:i])
        assert n == values.size == 24 * i
        assert ppl == pytest.approx(math.exp(values.mean()), rel=1e-6)
        assert error == pytest.approx(ppl * values.std() / math.sqrt(n - 1), rel=1e-4)


def test_strided(model: Path) -> None:
    windows = strided(TOKENS, 32, 20, 2, None)
    with small_context(model) as ctx:
        estimate = list(perplexity(ctx, windows, 2))[-1]
        nll = [-next_log_probs(ctx, TOKENS[20 * i : 20 * i + 256].tolist())[-20:] for i in range(2)]
    assert estimate.ppl == pytest.approx(math.exp(np.concatenate(nll).mean()), rel=1e-6)


def test_batches_passes_and_threads_do_not_change_a_bit(model: Path) -> None:
    windows = chunks(TOKENS, 64, -1, None)
    results = set()
    for n_seq, n_ubatch, n_threads in ((1, 512, 2), (8, 512, 2), (3, 7, 2), (4, 100, 1), (8, 512, 3)):
        with small_context(model, n_ubatch, n_threads) as ctx:
            last = list(perplexity(ctx, windows, n_seq))[-1]
            results.add((last.nll_sum, last.nll2_sum, last.n))
    assert len(results) == 1


def test_an_estimate_of_equal_tokens_has_no_error() -> None:
    estimate = Estimate()
    estimate.add(np.full(10, 2.0))
    assert (estimate.ppl, estimate.ppl_error) == (pytest.approx(math.exp(2)), 0.0)


def test_an_estimate_of_nothing() -> None:
    assert (Estimate().nll, Estimate().nll_error) == (0.0, 0.0)
