"""Greedy answers of the three real models against llama.cpp's: ten prompts, 48 tokens each.

"While the output prefix agrees, top-1 agrees on at least 97% of steps and its log-probability differs by less than 0.05
on average" can be read in two ways:

- forced: llama.cpp's own answer is fed, so that the prefix agrees at every step. 480 steps a model; each model is held
  to both bounds.
- free: we generate; a prompt counts up to and including the step where the answers part. One flipped near tie takes the
  rest of its prompt out of the count, so that few steps are left of a model and its share is a matter of luck. SmolLM2:
  the twin 97.7% with float activations, 98.3% with 8 bits; the engine 97.0% and, after a change of the order of a sum,
  99.0%. So the share is taken over the three models together; each model's own is recorded (`-rA` shows it), and its
  log-probabilities are held to the bound.

The log-probability is that of llama.cpp's choice, ours against its.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import engine_runs as runs
from tests import reference as ref
from tests.paths import DATA, need_shared
from tests.reference.golden import GreedyText, read_greedy

pytestmark = need_shared
runs.need_engine()

MODELS = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1",
    "gemma-3-270m": "gemma-3-270m-q4_k_m",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m",
}
N_STEPS = 48
Record = Callable[[str, object], None]


@dataclass(frozen=True)
class Steps:
    """What happened at each step of one prompt: our best token, and how far our log-probability is from llama.cpp's."""

    best: list[int]
    distance: NDArray[np.float64]


def steps(logits: NDArray[np.float32], text: GreedyText) -> Steps:
    """Row t of logits is what came before the answer's token t."""
    n = len(logits)
    logprobs = ref.log_softmax(logits)[np.arange(n), text.output_ids[:n]]
    return Steps([ref.greedy(row) for row in logits], np.abs(logprobs - text.logprobs[:n]))


@cache
def texts_of(name: str) -> list[GreedyText]:
    return read_greedy(DATA / "greedy" / "llamacpp.json")[MODELS[name]]


@cache
def forced(name: str, path: Path) -> list[Steps]:
    """Along llama.cpp's answers, each prompt and answer fed at once."""
    with runs.context(path, kv="f16", n_ctx=512) as ctx:
        results = []
        for text in texts_of(name):
            rows = runs.prefill(ctx, text.prompt_ids + text.output_ids[:-1], 512)
            results.append(steps(rows[-N_STEPS:], text))
    return results


@cache
def free(name: str, path: Path) -> list[Steps]:
    """All ten prompts generate at once, a token each per call."""
    texts = texts_of(name)
    rows: list[list[NDArray[np.float32]]] = [[] for _ in texts]
    with runs.context(path, kv="f16", n_ctx=2048) as ctx:
        sequences: list[Any] = [ctx.new_sequence() for _ in texts]
        last = runs.feed(ctx, [(s, t.prompt_ids) for s, t in zip(sequences, texts, strict=True)], "last")
        for step in range(N_STEPS):
            for kept, row in zip(rows, last, strict=True):
                kept.append(row)
            if step < N_STEPS - 1:
                chosen = [ref.greedy(row) for row in last]
                last = runs.feed(ctx, [(s, [token]) for s, token in zip(sequences, chosen, strict=True)], "last")
    return [steps(np.stack(kept), text) for kept, text in zip(rows, texts, strict=True)]


def n_common(best: list[int], text: GreedyText) -> int:
    """How many tokens of the answer come before the first that is not llama.cpp's."""
    differ = [ours != theirs for ours, theirs in zip(best, text.output_ids, strict=True)]
    return differ.index(True) if True in differ else len(differ)


def share(n_agree: int, n_steps: int, name: str, record: Record) -> float:
    record(f"top-1 {name}", f"{n_agree}/{n_steps} = {n_agree / n_steps:.4f}")
    print(f"{name}: top-1 agrees on {n_agree}/{n_steps} = {n_agree / n_steps:.4f} of steps")  # noqa: T201
    return n_agree / n_steps


def mean(distance: NDArray[np.float64], name: str, record: Record) -> float:
    record(f"log-probability {name}", f"{distance.mean():.4f}, at most {distance.max():.3f}")
    print(f"{name}: log-probability off by {distance.mean():.4f}, at most {distance.max():.3f}")  # noqa: T201
    return float(distance.mean())


@pytest.mark.parametrize("name", list(MODELS))
def test_along_llama_cpps_answer(name: str, real_model: Callable[[str], Path], record_property: Record) -> None:
    along = forced(name, real_model(name))
    pairs = zip(along, texts_of(name), strict=True)
    agree = [a == b for s, text in pairs for a, b in zip(s.best, text.output_ids, strict=True)]
    assert len(agree) == 480
    assert share(sum(agree), len(agree), name, record_property) >= 0.97
    assert mean(np.concatenate([s.distance for s in along]), name, record_property) < 0.05


def test_generating(real_model: Callable[[str], Path], record_property: Record) -> None:
    n_agree = n_steps = 0
    for name in MODELS:
        own = free(name, real_model(name))
        common = [n_common(s.best, text) for s, text in zip(own, texts_of(name), strict=True)]
        distance = np.concatenate([s.distance[: n + 1] for s, n in zip(own, common, strict=True)])
        share(sum(common), len(distance), name, record_property)
        assert mean(distance, name, record_property) < 0.05
        n_agree, n_steps = n_agree + sum(common), n_steps + len(distance)
    assert n_steps > 300  # else the share would say next to nothing
    assert share(n_agree, n_steps, "all three", record_property) >= 0.97


@pytest.mark.parametrize("name", list(MODELS))
def test_both_ways_part_at_the_same_token(name: str, real_model: Callable[[str], Path]) -> None:
    """A prompt fed at once and ten answers generated side by side: the same bits, so the same choices."""
    path = real_model(name)
    for text, along, alone in zip(texts_of(name), forced(name, path), free(name, path), strict=True):
        n = n_common(alone.best, text)
        assert alone.best[: n + 1] == along.best[: n + 1]
        np.testing.assert_array_equal(alone.distance[: n + 1], along.distance[: n + 1])
