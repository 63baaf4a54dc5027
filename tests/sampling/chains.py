"""Chains for the tests of sampling: one without any step, and what a chain leaves and draws."""

from typing import Any

from llmkit.engine.generation.sampler import Sampler
from llmkit.params import SamplingParams
from llmkit.sampling.candidates import Candidates
from tests.sampling.rows import Row

ALL_OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temp": 1.0}


def survivors(params: SamplingParams, logits: Row) -> Candidates:
    """What the chain leaves to the draw."""
    return Sampler(params).candidates(logits)


def draws(params: SamplingParams, logits: Row, n: int) -> list[int]:
    sampler = Sampler(params)
    return [sampler.sample(logits) for _ in range(n)]
