"""Distributions that llama.cpp's own test of its samplers expects (tests/test-sampling.cpp): facts, to five digits."""

from typing import Any

import numpy as np
import pytest

from llmkit.engine.generation.sampler import Sampler
from llmkit.params import SamplingParams
from llmkit.sampling.candidates import Ids
from llmkit.sampling.dry import Dry
from tests.sampling.rows import all_of, log_row, probs_of, row

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temp": 1.0, "seed": 0}
TENTHS = (0.1, 0.2, 0.3, 0.4)
FIFTHS = (0.2,) * 5

CASES: list[tuple[dict[str, Any], tuple[float, ...], dict[int, float]]] = [
    ({"temp": 1.0}, TENTHS, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
    ({"temp": 0.0}, TENTHS, {3: 1.0}),
    ({"top_k": 1}, TENTHS, {3: 1.0}),
    ({"top_k": 3}, TENTHS, {3: 0.44444, 2: 0.33333, 1: 0.22222}),
    ({"top_k": 4}, TENTHS, {3: 0.4, 2: 0.3, 1: 0.2, 0: 0.1}),
    ({"top_k": 0}, TENTHS, {3: 0.4, 2: 0.3, 1: 0.2, 0: 0.1}),
    ({"top_p": 0.0}, TENTHS, {3: 1.0}),
    ({"top_p": 0.7}, TENTHS, {3: 0.571429, 2: 0.428571}),
    ({"top_p": 0.8}, TENTHS, {3: 0.44444, 2: 0.33333, 1: 0.22222}),
    ({"top_p": 1.0}, TENTHS, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
    ({"min_p": 0.0}, TENTHS, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
    ({"min_p": 0.24}, TENTHS, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
    ({"min_p": 0.26}, TENTHS, {1: 0.2 / 0.9, 2: 0.3 / 0.9, 3: 0.4 / 0.9}),
    ({"min_p": 0.49}, TENTHS, {1: 0.2 / 0.9, 2: 0.3 / 0.9, 3: 0.4 / 0.9}),
    ({"min_p": 0.51}, TENTHS, {2: 0.3 / 0.7, 3: 0.4 / 0.7}),
    ({"min_p": 0.74}, TENTHS, {2: 0.3 / 0.7, 3: 0.4 / 0.7}),
    ({"min_p": 0.76}, TENTHS, {3: 1.0}),
    ({"min_p": 1.0}, TENTHS, {3: 1.0}),
    ({"typical_p": 0.5}, (0.97, 0.01, 0.01, 0.01), {0: 1.0}),
    ({"typical_p": 0.5}, (0.4, 0.2, 0.2, 0.2), {1: 1 / 3, 2: 1 / 3, 3: 1 / 3}),
    ({"top_n_sigma": 1.0}, TENTHS, {2: 0.428571, 3: 0.571429}),
    ({"top_n_sigma": 0.0}, TENTHS, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
    ({"top_n_sigma": 3.0}, TENTHS, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.09}, TENTHS[::-1], {3: 1.0}),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.19}, TENTHS[::-1], {2: 0.2 / 0.3, 3: 0.1 / 0.3}),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.29}, TENTHS[::-1], {1: 0.3 / 0.6, 2: 0.2 / 0.6, 3: 0.1 / 0.6}),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.39}, TENTHS[::-1], {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}),
]


@pytest.mark.parametrize(("options", "probs", "expected"), CASES)
def test_what_the_chain_leaves(options: dict[str, Any], probs: tuple[float, ...], expected: dict[int, float]) -> None:
    sampler = Sampler(SamplingParams(**{**OFF, **options}))
    if SamplingParams(**{**OFF, **options}).greedy:
        assert {sampler.sample(log_row(*probs)) for _ in range(20)} == set(expected)
    else:
        assert probs_of(sampler.candidates(log_row(*probs))) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("last", "repeat", "penalty", "expected"),
    [
        ((0,), 50.0, 0.0, (0, 0.25, 0.25, 0.25, 0.25)),
        ((0, 1, 2), 50.0, 0.0, (0, 0, 0, 0.5, 0.5)),
        ((0, 1, 2, 0, 0), 50.0, 0.0, (0, 0, 0, 0.5, 0.5)),
        ((0,), 1.0, 5.0, (0.000011, 0.249997, 0.249997, 0.249997, 0.249997)),
        ((0, 1, 2), 1.0, 5.0, (0.000023, 0.000023, 0.000023, 0.499966, 0.499966)),
        ((0, 1, 2, 0, 0), 1.0, 5.0, (0.000000, 0.000023, 0.000023, 0.499977, 0.499977)),
    ],
)
def test_penalties(last: tuple[int, ...], repeat: float, penalty: float, expected: tuple[float, ...]) -> None:
    sampler = Sampler(SamplingParams(**OFF, repeat_penalty=repeat, frequency_penalty=penalty, presence_penalty=penalty))
    sampler.accept(last)
    assert sampler.candidates(log_row(*FIFTHS)).probs.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("last", "multiplier", "allowed", "breaker", "expected"),
    [
        ((0, 1), 1.0, 2, None, (0.25,) * 4),
        ((0, 1, 2, 0, 1), 1.0, 2, None, (0.296923, 0.296923, 0.109232, 0.296923)),
        ((0, 1, 3, 4, 0, 1), 1.0, 2, 3, (0.2,) * 5),
        ((0, 1, 2, 0, 1), 2.0, 2, None, (0.241818, 0.241818, 0.032727, 0.241818, 0.241818)),
        ((0, 1, 2, 3, 4, 0, 1), 1.0, 4, None, (0.2,) * 5),
    ],
)
def test_dry(
    last: tuple[int, ...], multiplier: float, allowed: int, breaker: int | None, expected: tuple[float, ...]
) -> None:
    class Letters:
        def piece_bytes(self, id: int, special: bool = False) -> bytes:
            return b"abcde"[id : id + 1]

        def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
            raise AssertionError

    dry = Dry(multiplier, 1.1, allowed, [] if breaker is None else ["abcde"[breaker]], Letters())
    tokens: Ids = np.array(last)
    assert dry(all_of(row(*([0.0] * len(expected)))), tokens).probs.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(100, 1.0, 0.0), (0, 0.8, 0.0), (0, 0.0003, 0.0), (0, 1.0, 0.1), (100, 0.8, 0.1)]
)
def test_a_vocabulary_of_10000_whose_weights_are_its_ids(top_k: int, top_p: float, min_p: float) -> None:
    """Logits log(id): what is kept can be counted with whole numbers, as llama.cpp's test does."""
    n = 10_000
    sampler = Sampler(SamplingParams(**{**OFF, "top_k": top_k, "top_p": top_p, "min_p": min_p}))
    lowest = n - top_k if top_k else 1
    if top_p < 1:
        total = sum(range(lowest, n))
        reached = np.cumsum(np.arange(n - 1, lowest - 1, -1)) >= top_p * total
        lowest = max(lowest, n - 1 - int(reached.argmax()))
    if min_p > 0:
        lowest = max(lowest, int(np.ceil(min_p * (n - 1))))
    kept = sampler.candidates(log_row(*range(n))).ids
    assert (kept[0], kept[-1], kept.size) == (lowest, n - 1, n - lowest)
