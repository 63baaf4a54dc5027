"""Several continuations of one prompt: each is what it would be alone, bit for bit, and the prompt is computed once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.engine.generation.batched import BatchedGeneration, seeds
from llmkit.engine.generation.generate import Generation, StopReason
from llmkit.engine.generation.sampler import Sampler
from llmkit.engine.generation.timings import Timings
from llmkit.errors import UsageError
from llmkit.params import MAX_SEED, ContextParams, GenerateParams, SamplingParams
from tests.engine_runs import load, random_ids
from tests.make_models import make_model

SAMPLING = SamplingParams(seed=7, temp=1.5, top_k=0, top_p=1.0, min_p=0.0)
PROMPT = random_ids(40, 128, 1)  # ends within a block, which the continuations cannot share


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("batched") / "m.gguf")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """How many tokens each segment of each decode had."""
    seen: list[list[int]] = []
    decode = Context.decode

    def record(self: Context, segments: list[Segment]) -> Any:
        seen.append([len(segment.tokens) for segment in segments])
        return decode(self, segments)

    monkeypatch.setattr(Context, "decode", record)
    return seen


def context(path: Path, n_ctx: int = 128, n: int = 1, unified: bool = False) -> Context:
    params = ContextParams(n_ctx=n_ctx, n_threads=2, n_seq_max=n, kv_unified=unified)
    return Context(load(path), params)


def many(
    ctx: Context, n: int, n_predict: int, eog_ids: frozenset[int] = frozenset(), **options: Any
) -> list[Generation]:
    timings, params = Timings(), GenerateParams(n_predict, n_batch=16, n_logprobs=3)
    return [
        Generation(
            ctx, ctx.memory.sequence(i), PROMPT, Sampler(replace(SAMPLING, seed=seed), eog_ids), params, eog_ids,
            timings=timings, **options,
        )
        for i, seed in enumerate(seeds(7, n))
    ]  # fmt: skip


def alone(path: Path, i: int, n_predict: int, n_ctx: int = 128, eog_ids: frozenset[int] = frozenset()) -> Any:
    with context(path, n_ctx) as ctx:
        sampler = Sampler(replace(SAMPLING, seed=7 + i), eog_ids)
        params = GenerateParams(n_predict, n_batch=2048, n_logprobs=3)
        generation = Generation(ctx, ctx.new_sequence(), PROMPT, sampler, params, eog_ids)
        return list(generation), generation


def test_each_is_what_it_would_be_alone(path: Path, calls: list[list[int]]) -> None:
    """Ids and log-probabilities, which show other bits of a logit; and the seeds give different texts."""
    with context(path, n=5) as ctx:
        generations = many(ctx, 5, 30)
        tokens: list[list[Any]] = [[] for _ in generations]
        for i, token in BatchedGeneration(ctx, generations):
            tokens[i].append(token)
    assert calls == [[16], [16], [8]] + [[1] * 5] * 29, "the prompt once, then a token of each"
    assert len({tuple(g.ids) for g in generations}) == 5
    for i, generation in enumerate(generations):
        want, single = alone(path, i, 30)
        assert generation.ids == single.ids
        assert tokens[i] == want
        assert generation.stop_reason is StopReason.LIMIT


def test_those_that_end_leave_the_others_alone(path: Path) -> None:
    eog_ids = frozenset(range(0, 128, 16))
    with context(path, n=6) as ctx:
        generations = many(ctx, 6, 40, eog_ids)
        for _ in BatchedGeneration(ctx, generations):
            pass
        assert all(ctx.memory.seq_pos_max(i) == -1 for i in range(6)), "what has ended gives its memory back"
        assert ctx.memory.usage().bytes_used == 0
    lengths = [len(g.ids) for g in generations]
    assert len(set(lengths)) > 2, lengths
    for i, generation in enumerate(generations):
        _, single = alone(path, i, 40, eog_ids=eog_ids)
        assert (generation.ids, generation.stop_reason) == (single.ids, single.stop_reason)


def test_each_may_fill_its_context(path: Path) -> None:
    """The context holds for each, not for all together; so all end where they would alone."""
    with context(path, n_ctx=64, n=4) as ctx:
        generations = many(ctx, 4, -1)
        for _ in BatchedGeneration(ctx, generations):
            pass
    for i, generation in enumerate(generations):
        _, single = alone(path, i, -1, n_ctx=64)
        assert (generation.ids, generation.stop_reason) == (single.ids, StopReason.CONTEXT)


def test_in_a_shared_context_the_last_makes_room(path: Path) -> None:
    with context(path, n_ctx=96, n=2, unified=True) as ctx:
        generations = many(ctx, 4, -1)
        for _ in BatchedGeneration(ctx, generations):
            pass
    assert [g.stop_reason for g in generations] == [StopReason.CONTEXT] * 4
    lengths = [len(g.ids) for g in generations]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 96 - len(PROMPT) + 1
    assert lengths[3] < lengths[0]
    for i, generation in enumerate(generations):
        assert generation.ids == alone(path, i, -1, n_ctx=96)[1].ids[: lengths[i]]


def test_an_interruption_ends_all(path: Path) -> None:
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > 6

    with context(path, n=3) as ctx:
        generations = many(ctx, 3, 30, interrupted=interrupted)
        n = len(list(BatchedGeneration(ctx, generations)))
    assert n == 3 * 4, "three chunks of the prompt were asked about, and three steps"
    assert [g.stop_reason for g in generations] == [StopReason.INTERRUPTED] * 3


def test_an_interrupted_prompt_ends_all(path: Path) -> None:
    with context(path, n=3) as ctx:
        generations = many(ctx, 3, 30, interrupted=lambda: True)
        assert not list(BatchedGeneration(ctx, generations))
    assert [g.stop_reason for g in generations] == [StopReason.INTERRUPTED] * 3


def test_nothing_to_predict(path: Path) -> None:
    with context(path, n=3) as ctx:
        generations = many(ctx, 3, 0)
        assert not list(BatchedGeneration(ctx, generations))
    assert [g.stop_reason for g in generations] == [StopReason.LIMIT] * 3


def test_timings_count_all(path: Path) -> None:
    with context(path, n=3) as ctx:
        generations = many(ctx, 3, 10)
        for _ in BatchedGeneration(ctx, generations):
            pass
    timings = generations[0].timings
    assert (timings.prompt_n, timings.decode_n) == (len(PROMPT), 3 * 9)
    assert timings.first_token_s is not None


def test_seeds_pass_over_the_random_one() -> None:
    assert seeds(5, 3) == [5, 6, 7]
    assert seeds(MAX_SEED - 1, 3) == [MAX_SEED - 1, 0, 1]


def test_none_at_all_is_refused(path: Path) -> None:
    with context(path) as ctx, pytest.raises(UsageError):
        BatchedGeneration(ctx, [])
