"""The ends of a chain that steer: Mirostat 1 and 2, adaptive-p. Their distributions against the twin, and their aim."""

from typing import Any

import numpy as np
import pytest

from llmkit.engine.generation.sampler import Sampler
from llmkit.params import SAMPLERS, SamplingParams
from llmkit.sampling.adaptive_p import AdaptiveP
from llmkit.sampling.mirostat import Mirostat1, Mirostat2, zipf_cut, zipf_exponent
from tests.reference import sampling as reference
from tests.sampling.rows import all_of, log_row, probs_of, random_row, row

ADAPTIVE: dict[str, Any] = {"samplers": (*SAMPLERS, "adaptive_p"), "top_k": 0, "top_p": 1.0, "min_p": 0.0, "temp": 1.0}


def surprise(probs: dict[int, float], token: int) -> float:
    return -float(np.log2(probs[token]))


@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0, 5.0, 9.0, 1e6])
def test_mirostat_2_keeps_what_is_not_too_surprising(mu: float) -> None:
    for seed in range(5):
        logits = random_row(500, seed)
        mirostat = Mirostat2(3.0, 0.1)
        mirostat.mu = mu
        kept = reference.mirostat_2(reference.ranked(list(enumerate(logits.tolist()))), mu)
        assert mirostat.kept(all_of(logits)).ids.tolist() == sorted(i for i, _ in kept)


@pytest.mark.parametrize("mu", [0.5, 3.0, 5.0, 9.0])
def test_mirostat_1_keeps_what_zipfs_law_says(mu: float) -> None:
    for seed in range(5):
        logits = random_row(500, seed)
        mirostat = Mirostat1(3.0, 0.1)
        mirostat.mu = mu
        kept = reference.mirostat_1(reference.ranked(list(enumerate(logits.tolist()))), mu)
        assert mirostat.kept(all_of(logits)).ids.tolist() == sorted(i for i, _ in kept)


def test_zipfs_law_is_recognised() -> None:
    ranks = np.arange(1, 101)
    assert zipf_exponent(np.log(1 / ranks**1.25)) == pytest.approx(1.25)
    assert zipf_cut(1.0, 5.0, 1000) == pytest.approx(zipf_cut(1.0 + 1e-9, 5.0, 1000), abs=1)
    assert [zipf_cut(0.0, mu, 1000) for mu in (5.0, 12.0)] == [1, 1000]
    assert zipf_cut(1.2, 1e9, 1000) == 1000
    assert zipf_cut(1e9, 5.0, 1000) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_moves_its_limit_by_the_surprise(version: int) -> None:
    logits = random_row(200, seed=4, scale=1.0)
    sampler = Sampler(SamplingParams(mirostat=version, mirostat_tau=3.0, mirostat_eta=0.2, temp=0.7, seed=1))
    selector = sampler._selector
    assert isinstance(selector, Mirostat2)
    assert selector.mu == 6.0
    kept = probs_of(selector.kept(sampler.candidates(logits)))
    token = sampler.sample(logits)
    assert selector.mu == pytest.approx(6.0 - 0.2 * (surprise(kept, token) - 3.0))


def test_mirostat_2_meets_its_target() -> None:
    """The mean surprise over many tokens, within what the kept tokens allow."""
    logits = random_row(1000, seed=2, scale=1.0)
    for tau in (2.0, 4.0, 6.0):
        sampler = Sampler(SamplingParams(mirostat=2, mirostat_tau=tau, temp=1.0, seed=5))
        probs = probs_of(all_of(logits))
        tokens = [sampler.sample(logits) for _ in range(1500)]
        del probs
        selector = sampler._selector
        assert isinstance(selector, Mirostat2)
        kept = selector.kept(sampler.candidates(logits))
        entropy = float(-(kept.probs * np.log2(kept.probs)).sum())
        assert entropy == pytest.approx(tau, abs=0.4)
        assert len(set(tokens)) > 2**tau / 2


def test_mirostat_leaves_out_all_other_steps_but_temperature_and_bias() -> None:
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "mirostat": 2, "seed": 3}
    logits = random_row(300, seed=3)
    plain, other = (
        Sampler(SamplingParams(**off | more))  # type: ignore[arg-type]
        for more in ({}, {"repeat_penalty": 5.0, "top_k": 2, "xtc_probability": 1.0})
    )
    assert [plain.sample(logits) for _ in range(30)] == [other.sample(logits) for _ in range(30)]
    hot = Sampler(SamplingParams(**off | {"temp": 5.0}))  # type: ignore[arg-type]
    cold = Sampler(SamplingParams(**off | {"temp": 1e-9}))  # type: ignore[arg-type]
    assert len({hot.sample(logits) for _ in range(50)}) > 3
    assert {cold.sample(logits) for _ in range(50)} == {int(logits.argmax())}
    biased = Sampler(SamplingParams(**off | {"logit_bias": ((7, 100.0),)}))  # type: ignore[arg-type]
    assert biased.sample(logits) == 7
    greedy = Sampler(SamplingParams(**off | {"temp": 0.0, "dynatemp_range": 1.0}))  # type: ignore[arg-type]
    assert {greedy.sample(logits) for _ in range(50)} == {int(logits.argmax())}


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_of_one_token_and_of_equal_ones(version: int) -> None:
    sampler = Sampler(SamplingParams(mirostat=version, seed=1))
    assert [sampler.sample(row(5.0)) for _ in range(50)] == [0] * 50
    assert {sampler.sample(row(1, -np.inf, -np.inf)) for _ in range(50)} == {0}
    assert {sampler.sample(row(*[0.0] * 4)) for _ in range(200)} <= {0, 1, 2, 3}


@pytest.mark.parametrize(("target", "decay"), [(0.0, 0.9), (0.3, 0.5), (0.5, 0.0), (1.0, 0.99)])
def test_adaptive_p_bends_the_distribution_as_the_twin_does(target: float, decay: float) -> None:
    probs = (0.5, 0.25, 0.15, 0.06, 0.04)
    selector, drawn = AdaptiveP(target, decay), list[float]()
    for step in range(12):
        candidates = all_of(log_row(*probs))
        expected = reference.adaptive_p(probs_of(candidates), target, decay, drawn)
        assert probs_of(selector.bent(candidates)) == pytest.approx(expected, rel=1e-4)
        drawn.append(probs[selector.choose(candidates, step / 12)])


def test_adaptive_p_prefers_what_is_near_its_target() -> None:
    logits = log_row(0.6, 0.2, 0.1, 0.05, 0.05)
    means = []
    for target in (0.05, 0.3, 0.6):
        sampler = Sampler(SamplingParams(**ADAPTIVE, adaptive_target=target, seed=4))
        tokens = [sampler.sample(logits) for _ in range(400)]
        means.append(float(np.exp(logits)[tokens].mean()))
    assert means == pytest.approx([0.05, 0.3, 0.6], abs=0.08)


def test_adaptive_p_below_0_is_a_draw() -> None:
    logits = random_row(50)
    plain = Sampler(SamplingParams(**{**ADAPTIVE, "samplers": SAMPLERS}, seed=4))
    off = Sampler(SamplingParams(**ADAPTIVE, seed=4))
    assert [off.sample(logits) for _ in range(50)] == [plain.sample(logits) for _ in range(50)]


def test_adaptive_p_never_takes_what_is_ruled_out() -> None:
    sampler = Sampler(SamplingParams(**ADAPTIVE, adaptive_target=0.0, seed=4, logit_bias=((0, -np.inf),)))
    assert 0 not in {sampler.sample(row(5, 4, 3, 2)) for _ in range(200)}
