"""The chain against its slow twin (tests/reference/sampling.py): what is kept, its probabilities, and 10,000 draws."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.engine.generation.sampler import Sampler, describe_chain
from llmkit.params import ALL_SAMPLERS, SAMPLERS, SamplingParams
from llmkit.sampling.draw import uniform
from tests.reference import sampling as reference
from tests.sampling.rows import Row, Words, probs_of, random_row, tied_row

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temp": 1.0}
PAST = [3, 4, 5, 9, 3, 4, 5, 7, 2, 3, 4]
XTC_ALWAYS = {"xtc_probability": 1.0}

ONE_STEP: list[dict[str, Any]] = [
    {"repeat_penalty": 1.3},
    {"frequency_penalty": 0.4, "repeat_last_n": 5},
    {"presence_penalty": 0.7, "frequency_penalty": -0.2, "repeat_penalty": 0.9},
    {"dry_multiplier": 0.8},
    {"dry_multiplier": 0.5, "dry_base": 1.1, "dry_allowed_length": 0, "dry_penalty_last_n": 9},
    {"top_n_sigma": 1.0},
    {"top_k": 7},
    {"typical_p": 0.5},
    {"typical_p": 0.9},
    {"top_p": 0.7},
    {"min_p": 0.2},
    XTC_ALWAYS | {"xtc_threshold": 0.05},
    {"temp": 0.3},
    {"temp": 1.7},
    {"dynatemp_range": 0.5, "temp": 0.8},
    {"dynatemp_range": 2.0, "dynatemp_exponent": 2.5, "temp": 1.0},
    {"top_p": 0.1, "min_keep": 6},
    {"min_p": 0.9, "min_keep": 6},
    {"typical_p": 0.1, "min_keep": 6},
    XTC_ALWAYS | {"xtc_threshold": 0.05, "min_keep": 18},
]
ALL_STEPS: dict[str, Any] = {
    "repeat_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1, "dry_multiplier": 0.8, "top_n_sigma": 2.0,
    "top_k": 15, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.05, "xtc_probability": 1.0, "xtc_threshold": 0.2,
    "temp": 0.9, "dynatemp_range": 0.3,
}  # fmt: skip
CHAINS = [
    SamplingParams(),
    SamplingParams(**ALL_STEPS),
    SamplingParams(**ALL_STEPS | {"samplers": tuple(reversed(SAMPLERS))}),
    SamplingParams(**ALL_STEPS | {"samplers": ("temperature", "top_k", "penalties", "top_k", "xtc", "typ_p")}),
    SamplingParams(**OFF | {"samplers": ()}),
    *(SamplingParams(**OFF | step) for step in ONE_STEP),
]

each_chain = pytest.mark.parametrize("params", CHAINS, ids=describe_chain)


def sampler_with_past(params: SamplingParams, seed: int = 42, n_vocab: int = 20) -> Sampler:
    """Breakers end no repetition here: no token holds one."""
    sampler = Sampler(SamplingParams(**vars(params) | {"seed": seed}), vocab=Words(["-"] * n_vocab))
    sampler.accept(PAST)
    return sampler


def twin(logits: Row, params: SamplingParams) -> dict[int, float]:
    return reference.chain(logits, params, PAST, xtc_acts=params.xtc_probability == 1)


@each_chain
@pytest.mark.parametrize("n_vocab", [11, 300, 3000])
def test_what_is_kept_equals_the_twins(params: SamplingParams, n_vocab: int) -> None:
    for logits in (random_row(n_vocab, seed=n_vocab), random_row(n_vocab, seed=1, scale=0.2), tied_row(n_vocab)):
        found = probs_of(sampler_with_past(params, n_vocab=n_vocab).candidates(logits))
        expected = twin(logits, params)
        assert sorted(found) == sorted(expected)
        assert found == pytest.approx(expected, rel=2e-5, abs=1e-12)


@pytest.mark.parametrize("params", [CHAINS[1], CHAINS[4]], ids=describe_chain)
def test_10000_draws_follow_the_distribution(params: SamplingParams) -> None:
    """Chi-squared; with a fixed seed this either always passes or always fails."""
    n_draws, n_vocab = 10_000, 20
    logits = random_row(n_vocab, seed=9, scale=1.0)
    expected = twin(logits, params)
    sampler = sampler_with_past(params)
    counts = np.zeros(n_vocab)
    for _ in range(n_draws):
        counts[sampler.sample(logits)] += 1
        sampler._past.clear()
        sampler.accept(PAST)
    ids = np.array(sorted(expected))
    assert counts.sum() == counts[ids].sum()
    wanted = np.array([expected[i] for i in ids]) * n_draws
    chi_squared = float(((counts[ids] - wanted) ** 2 / wanted).sum())
    degrees = len(ids) - 1
    assert chi_squared <= degrees + 4 * np.sqrt(2 * degrees)


def test_xtc_acts_as_often_as_it_should() -> None:
    """10,000 chances: the share in which the best token went, within four standard deviations."""
    logits = random_row(20, seed=9, scale=1.0)
    sampler = Sampler(SamplingParams(**OFF | {"xtc_probability": 0.3, "xtc_threshold": 0.05, "seed": 7}))
    best, n_acted = int(logits.argmax()), 0
    for _ in range(10_000):
        n_acted += best not in sampler.candidates(logits).ids
        sampler.n_drawn += 1
    assert abs(n_acted - 3000) < 4 * np.sqrt(10_000 * 0.3 * 0.7)


def test_xtcs_chance_is_not_the_number_that_draws() -> None:
    """Else XTC would act just when the draw falls on the first tokens."""
    sampler = Sampler(SamplingParams(seed=3))
    pairs = []
    for n in range(2000):
        sampler.n_drawn = n
        pairs.append((sampler.chance(), uniform(3, n)))
    assert abs(np.corrcoef(np.array(pairs).T)[0, 1]) < 0.1


@given(
    st.lists(st.floats(-1e4, 1e4, width=32) | st.just(-np.inf) | st.just(0.0), min_size=1, max_size=150),
    st.lists(st.sampled_from(ALL_SAMPLERS[:-1]), max_size=10),
    st.fixed_dictionaries(
        {
            "temp": st.floats(-1, 50), "top_k": st.integers(-1, 200), "top_p": st.floats(0, 1),
            "min_p": st.floats(0, 1), "typical_p": st.floats(0, 1), "top_n_sigma": st.floats(-1, 5),
            "xtc_probability": st.floats(0, 1), "xtc_threshold": st.floats(0, 1),
            "dynatemp_range": st.floats(0, 100), "dynatemp_exponent": st.floats(0, 100),
            "repeat_penalty": st.floats(1e-3, 1e3), "frequency_penalty": st.floats(-1e4, 1e4),
            "presence_penalty": st.floats(-1e38, 1e38), "dry_multiplier": st.floats(0, 1e4),
            "dry_base": st.floats(1, 1e6), "dry_allowed_length": st.integers(0, 5), "min_keep": st.integers(0, 200),
            "mirostat": st.integers(0, 2), "mirostat_tau": st.floats(0, 50), "mirostat_eta": st.floats(0, 10),
            "seed": st.integers(0, 2**32 - 2),
        }
    ),
    st.lists(st.integers(0, 20), max_size=60),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_any_logits_and_any_values_give_a_possible_token(
    values: list[float], samplers: list[str], options: dict[str, Any], past: list[int]
) -> None:
    logits = np.array(values, dtype=np.float32)
    logits[0] = max(logits[0], -5)
    sampler = Sampler(SamplingParams(samplers=tuple(samplers), **options), vocab=Words(["a"] * 150))
    sampler.accept(past)
    with np.errstate(all="raise", under="ignore"):
        for _ in range(3):
            assert logits[sampler.sample(logits)] > -np.inf
