"""Sampled texts do not depend on threads, chunks, or what else is in the batch (case 20): a tiny model, fixed seeds."""

from pathlib import Path

import pytest

from llmkit.engine.generation.sampler import Sampler
from llmkit.params import SamplingParams
from tests import engine_runs as runs
from tests.make_models import make_model

runs.need_engine()

N_TOKENS = 40
SAMPLINGS = [
    SamplingParams(seed=7, temp=1.2),
    SamplingParams(seed=8, temp=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.2, dry_multiplier=0.5),
    SamplingParams(seed=9, mirostat=2),
    SamplingParams(seed=10, xtc_probability=0.5, typical_p=0.9, dynatemp_range=0.4),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("sampling") / "tiny.gguf", n_vocab=300)


def alone(path: Path, sampling: SamplingParams, prompt: list[int], n_threads: int, chunk: int) -> list[int]:
    """One sequence in a context of its own."""
    sampler, ids = Sampler(sampling), list[int]()
    sampler.accept(prompt)
    with runs.context(path, n_threads=n_threads) as ctx:
        seq = ctx.new_sequence()
        for start in range(0, len(prompt), chunk):
            logits = runs.feed(ctx, [(seq, prompt[start : start + chunk])], "last")[-1]
        for _ in range(N_TOKENS):
            ids.append(sampler.sample(logits))
            logits = runs.feed(ctx, [(seq, ids[-1:])], "last")[0]
    return ids


def together(path: Path, prompts: list[list[int]]) -> list[list[int]]:
    """All in one batch, each token of all sequences in one call, other sequences having used the blocks before."""
    samplers, ids = [Sampler(sampling) for sampling in SAMPLINGS], [list[int]() for _ in SAMPLINGS]
    with runs.context(path, seed=3) as ctx:
        sequences = [ctx.new_sequence() for _ in SAMPLINGS]
        rows = runs.feed(ctx, list(zip(sequences, prompts, strict=True)), "last")
        for sampler, prompt in zip(samplers, prompts, strict=True):
            sampler.accept(prompt)
        for _ in range(N_TOKENS):
            for i, sampler in enumerate(samplers):
                ids[i].append(sampler.sample(rows[i]))
            rows = runs.feed(ctx, [(seq, own[-1:]) for seq, own in zip(sequences, ids, strict=True)], "last")
    return ids


def test_sampled_ids_are_the_same_however_they_are_computed(tiny: Path) -> None:
    prompts = [runs.random_ids(n, 300, seed=n) for n in (5, 20, 33, 11)]
    expected = [alone(tiny, s, p, n_threads=1, chunk=64) for s, p in zip(SAMPLINGS, prompts, strict=True)]
    assert len({tuple(ids) for ids in expected}) == len(expected)
    assert [alone(tiny, s, p, n_threads=2, chunk=3) for s, p in zip(SAMPLINGS, prompts, strict=True)] == expected
    assert together(tiny, prompts) == expected
