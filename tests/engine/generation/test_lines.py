"""Many prompts in one batch: bits as alone, a common beginning once, failures that stay with their own prompt."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.engine.batch import Segment
from llmkit.engine.common_prefix import n_common
from llmkit.engine.context import Context
from llmkit.engine.generation.generate import Generation, StopReason
from llmkit.engine.generation.lines import LineBatch, Make
from llmkit.engine.generation.sampler import Sampler
from llmkit.errors import LlmkitError, NumericsError, UsageError
from llmkit.params import ContextParams, GenerateParams, SamplingParams
from tests.engine_runs import load, random_ids
from tests.make_models import make_model

N_PARALLEL, WINDOW = 3, 48
COMMON = random_ids(100, 128, 1)
# Each goes on from another place of the common beginning: at its end, one or two before it, long before it, at once;
# the last two are the beginning itself, and a part of it.
PROMPTS = [
    [*COMMON[: 100 - back], *random_ids(n, 128, i + 2)]
    for i, (back, n) in enumerate(
        [(0, 7), (1, 20), (0, 1), (2, 3), (50, 9), (100, 4), (1, 5), (0, 30), (0, 0), (40, 0)]
    )
]


@dataclass
class Queue:
    """Prompts that are all there; a number more than n_now is not, unless it is waited for."""

    makes: list[Make | LlmkitError]
    n_now: int = 99
    n_taken: int = 0
    waits: list[bool] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.n_taken == len(self.makes)

    def take(self, *, wait: bool) -> Make | LlmkitError | None:
        self.waits.append(wait)
        if self.ended or (not wait and self.n_taken >= self.n_now):
            return None
        self.n_taken += 1
        return self.makes[self.n_taken - 1]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with full attention, and one with windows that the common beginning is longer than."""
    folder, windows = tmp_path_factory.mktemp("lines"), dict(window=WINDOW, window_pattern=(1, 0))
    more: dict[str, Any] = windows if request.param == "gemma3" else {}
    return make_model(folder / "m.gguf", arch=request.param, n_ctx_train=1024, **more)


@pytest.fixture
def ctx(path: Path) -> Iterator[Context]:
    params = ContextParams(n_ctx=256, n_threads=2, n_ubatch=64, n_seq_max=N_PARALLEL + 1, kv_unified=False)
    with Context(load(path), params) as ctx:
        yield ctx


def maker(ctx: Context, prompt: list[int], seed: int, n_predict: int = 6) -> Make:
    sampling = SamplingParams(seed=seed, temp=1.5, top_k=0, top_p=1.0, min_p=0.0)
    params = GenerateParams(n_predict, n_batch=64, n_logprobs=2)
    return lambda seq_id: Generation(ctx, ctx.memory.sequence(seq_id), prompt, Sampler(sampling), params)


def batch(ctx: Context, makes: list[Any], **more: Any) -> LineBatch:
    options: dict[str, Any] = dict(n_rows=64, n_ahead=99, prefix_id=N_PARALLEL, prefix_ids=COMMON) | more
    return LineBatch(ctx, Queue(makes), N_PARALLEL, **options)


def answers(ctx: Context, found: LineBatch) -> dict[int, tuple[list[Any], Any]]:
    """By number: the tokens, and what came last."""
    tokens: dict[int, list[Any]] = {}
    ends: dict[int, tuple[list[Any], Any]] = {}
    for answer in found:
        assert answer.number not in ends, "nothing comes after the end"
        if answer.token is not None:
            tokens.setdefault(answer.number, []).append(answer.token)
        else:
            ends[answer.number] = tokens.get(answer.number, []), answer
    assert all(ctx.memory.seq_pos_max(i) == -1 for i in range(N_PARALLEL)), "the memory is given back"
    return ends


def test_each_is_what_it_would_be_alone(path: Path, ctx: Context) -> None:
    ends = answers(ctx, batch(ctx, [maker(ctx, prompt, i) for i, prompt in enumerate(PROMPTS)]))
    assert len(ends) == len(PROMPTS)
    for i, prompt in enumerate(PROMPTS):
        with Context(load(path), ContextParams(n_ctx=256, n_threads=2, n_ubatch=64)) as single:
            want = list(maker(single, prompt, i)(0))
        tokens, end = ends[i]
        assert tokens == want, "ids and log-probabilities"
        assert end.generation.stop_reason == StopReason.LIMIT
        windowed = ctx.memory.rewind == "points"
        most = min(n_common(COMMON, prompt), len(prompt) - 1)
        assert end.n_shared == most or (windowed and (end.n_shared in (0, 98, 99)))
    assert sum(end.n_shared for _, end in ends.values()) > 500


def test_a_beginning_that_is_there_already_is_used_as_it_is(path: Path, ctx: Context) -> None:
    ctx.decode([Segment(ctx.memory.sequence(N_PARALLEL), COMMON, "none")])
    ends = answers(ctx, batch(ctx, [maker(ctx, [*COMMON, 5, 6], 1)], prefix_ids=()))
    with Context(load(path), ContextParams(n_ctx=256, n_threads=2)) as single:
        assert ends[0][0] == list(maker(single, [*COMMON, 5, 6], 1)(0))
    assert ends[0][1].n_shared == 100


def test_a_prompt_that_fails_is_an_error_of_its_own(ctx: Context) -> None:
    def fails(seq_id: int) -> Generation:
        raise UsageError("no prompt")

    makes = [maker(ctx, PROMPTS[0], 0), UsageError("no line"), fails, maker(ctx, list(range(100)) * 3, 0)]
    makes += [maker(ctx, PROMPTS[1], 1)]
    ends = answers(ctx, batch(ctx, makes))
    assert [ends[i][1].error is None for i in range(5)] == [True, False, False, False, True]
    assert [len(ends[i][0]) for i in range(5)] == [6, 0, 0, 0, 6]
    assert "the context holds 256" in ends[3][1].error.message


def test_whoever_makes_a_batch_fail_is_found(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Context.decode

    def poisoned(self: Context, segments: list[Segment]) -> Any:
        if any(77 in segment.tokens for segment in segments):
            raise NumericsError("not finite")
        return decode(self, segments)

    prompts = [[3, 4, 5], [3, 77, 5], [3, 6, 5], [3, 4]]
    want = answers(ctx, batch(ctx, [maker(ctx, p, i) for i, p in enumerate(prompts)], prefix_ids=()))
    assert not any(77 in end.generation.ids for i, (_, end) in want.items() if i != 1), "no other meets it by chance"
    monkeypatch.setattr(Context, "decode", poisoned)
    ends = answers(ctx, batch(ctx, [maker(ctx, p, i) for i, p in enumerate(prompts)], prefix_ids=()))
    assert isinstance(ends[1][1].error, NumericsError)
    assert [ends[i][0] for i in (0, 2, 3)] == [want[i][0] for i in (0, 2, 3)]


def test_a_choice_that_fails_ends_one_text(ctx: Context) -> None:
    class Broken(Sampler):
        def sample(self, logits: Any, allowed: Any = None) -> int:
            raise NumericsError("none is left")

    def make(seq_id: int) -> Generation:
        return Generation(ctx, ctx.memory.sequence(seq_id), [1, 2], Broken(SamplingParams()))

    ends = answers(ctx, batch(ctx, [maker(ctx, [1, 2], 0), make, maker(ctx, [1, 2, 3], 0)]))
    assert [ends[i][1].error is None for i in range(3)] == [True, False, True]


def test_prompts_are_waited_for_only_when_nothing_is_at_work(ctx: Context) -> None:
    prompts = Queue([maker(ctx, [1, 2], i) for i in range(5)], n_now=2)
    answers(ctx, LineBatch(ctx, prompts, N_PARALLEL, 64, 99, N_PARALLEL))
    assert prompts.n_taken == 5
    assert prompts.waits[:3] == [True, False, False]
    assert prompts.waits.count(True) <= 5


def test_what_waits_for_a_long_text_is_bounded(ctx: Context) -> None:
    makes = [maker(ctx, [1, 2], 0, n_predict=60)] + [maker(ctx, [1, 2], i, n_predict=1) for i in range(1, 40)]
    seen = list[int]()
    for answer in batch(ctx, makes, n_ahead=8):
        seen.append(answer.number)
        if 0 in seen and answer.number == 0 and answer.token is None:
            assert max(seen) <= 8
    assert max(seen) == 39


@pytest.mark.parametrize("after", [0, 1, 5])
def test_an_interruption_ends_all_and_takes_no_more(ctx: Context, after: int) -> None:
    n_asked = 0

    def interrupted() -> bool:
        nonlocal n_asked
        n_asked += 1
        return n_asked > after

    prompts = Queue([maker(ctx, [1, 2], i, n_predict=50) for i in range(9)])
    found = answers(ctx, LineBatch(ctx, prompts, N_PARALLEL, 64, 99, N_PARALLEL, interrupted=interrupted))
    assert len(found) == prompts.n_taken <= N_PARALLEL
    assert all(end.generation.stop_reason == StopReason.INTERRUPTED for _, end in found.values())


def test_long_prompts_do_not_keep_others_waiting(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has at most n_rows tokens, and every text that is under way gets one."""
    decode, sizes = Context.decode, list[list[int]]()

    def record(self: Context, segments: list[Segment]) -> Any:
        sizes.append([len(segment.tokens) for segment in segments])
        return decode(self, segments)

    monkeypatch.setattr(Context, "decode", record)
    makes = [maker(ctx, [1, 2], 0, 12), maker(ctx, random_ids(90, 128, 3), 1), maker(ctx, random_ids(90, 128, 4), 2)]
    answers(ctx, batch(ctx, makes, n_rows=16, prefix_ids=()))
    assert all(sum(step) <= 16 for step in sizes)
    assert sizes[0] == [2, 14]
    assert all(step[0] == 1 for step in sizes[1:11])
    assert np.sum([sum(step) for step in sizes]) == 2 + 90 + 90 + 11 + 5 + 5
