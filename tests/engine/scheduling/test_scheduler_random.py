"""Whatever happens around it, an answer has the bits that its prompt gives alone: cold, cached, parked and resumed, in
company, with others cancelled. Blocks lie in random places and are full of NaN when nobody has them."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.engine.generation.generate import StopReason
from llmkit.engine.scheduling import admission
from llmkit.engine.scheduling.requests import Failed, Finished
from llmkit.errors import ContextFullError, LlmkitError, NumericsError, UnsupportedError
from tests.engine.scheduling.driving import GREEDY, Bench, alone, ids, opened
from tests.make_models import make_model

N_CTX = 320


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model that keeps all tokens, one with a window."""
    window = {"window": 48, "window_pattern": (1, 0)} if request.param == "gemma3" else {}
    folder = tmp_path_factory.mktemp("random")
    return make_model(folder / f"{request.param}.gguf", arch=request.param, n_ctx_train=4096, **window)


@pytest.fixture(scope="module")
def reference(path: Path) -> Iterator[Context]:
    """A context that nobody else uses."""
    with opened(path, N_CTX) as ctx:
        yield ctx


class Life:
    """Random requests over few texts, some of which begin alike or continue another's answer."""

    def __init__(self, bench: Bench, draw: random.Random) -> None:
        self.bench, self.draw = bench, draw
        self.prompts: list[list[int]] = []
        self.n_predicts: list[int] = []

    def prompt(self) -> list[int]:
        draw = self.draw
        over = [i for i, told in enumerate(self.bench.told) if told.is_over and isinstance(told.end, Finished)]
        if over and draw.random() < 0.4:
            i = draw.choice(over)
            text = self.prompts[i] + self.bench.told[i].ids + ids(draw.randrange(1, 20), draw.randrange(100))
        else:
            text = ids(draw.choice((33, 64, 120)), draw.randrange(3)) + ids(draw.randrange(0, 60), draw.randrange(100))
        return text[: N_CTX - 60]

    def submit(self) -> None:
        draw = self.draw
        self.prompts.append(self.prompt())
        self.n_predicts.append(draw.choice((0, 1, 5, 40)))
        self.bench.submit(
            self.prompts[-1],
            self.n_predicts[-1],
            cache_prompt=draw.random() < 0.85,
            namespace=draw.choice(("public", "key x", "key y")),
            points=tuple(sorted(draw.sample(range(1, 60), 2))),
        )

    def happen(self) -> None:
        draw, bench = self.draw, self.bench
        for _ in range(draw.choice((0, 0, 1, 3))):
            self.submit()
        if bench.handles and draw.random() < 0.1:
            draw.choice(bench.handles).cancelled = True
        bench.now += draw.choice((0.0, 0.01, 1.0))
        bench.scheduler._chunk.measured(100, draw.choice((0.05, 0.3, 2.0)))
        bench.step()


@pytest.mark.parametrize("seed", range(3))
def test_answers_have_the_bits_that_they_have_alone(
    path: Path, reference: Context, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "FORESEEN", 4)  # so that texts are parked
    with opened(path, N_CTX, n_slots=5, seed=seed) as ctx:
        bench = Bench(ctx, n_slots=5, max_chunk=48)
        life = Life(bench, random.Random(seed))
        while len(bench.told) < 40:
            life.happen()
        bench.run()
        for prompt, n_predict, told in zip(life.prompts, life.n_predicts, bench.told, strict=True):
            assert isinstance(told.end, Finished), told.end
            if told.end.stop_reason is StopReason.INTERRUPTED:
                n = len(told.ids)
                assert told.answer == (alone(reference, prompt, n) if n else ([], []))
            else:
                assert told.answer == alone(reference, prompt, n_predict)
        counters = bench.scheduler.counters
        assert (counters.tokens_hit > 0, counters.n_parked > 0) == (True, True)
        bench.assert_nothing_lost()


class Faulty:
    """A context whose decode fails now and then: rows that are no numbers, no room, an error nobody foresaw."""

    def __init__(self, ctx: Context, draw: random.Random) -> None:
        self._ctx, self._draw = ctx, draw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def decode(self, segments: list[Segment]) -> Any:
        chance = self._draw.random()
        if chance < 0.03:
            raise NumericsError("no numbers", "", (self._draw.choice(segments).seq,))
        if chance < 0.06:
            raise ContextFullError("no room")
        if chance < 0.1:
            raise RuntimeError("nobody foresaw it")
        return self._ctx.decode(segments)


@pytest.mark.parametrize("seed", range(2))
def test_faults_end_requests_and_nothing_else(path: Path, reference: Context, seed: int) -> None:
    draw = random.Random(seed)
    with opened(path, N_CTX, n_slots=5, seed=seed) as ctx:
        bench = Bench(Faulty(ctx, draw), n_slots=5, max_chunk=48)  # type: ignore[arg-type]
        life, n_faults = Life(bench, draw), 0
        while len(bench.told) < 40 or bench.scheduler.jobs:
            try:
                if len(bench.told) < 40:
                    life.happen()
                else:
                    bench.step()
            except RuntimeError:
                n_faults += 1
                bench.scheduler.fail_all(LlmkitError("nobody foresaw it"))
                bench.deliver()
        assert n_faults
        ends = [type(told.end) for told in bench.told]
        assert {Finished, Failed} == set(ends)
        for prompt, told in zip(life.prompts, bench.told, strict=True):
            n = len(told.ids)
            assert told.answer == (alone(reference, prompt, n) if n else ([], []))
        bench.assert_nothing_lost()


@pytest.mark.parametrize("n_company", [0, 15])
def test_the_same_prompt_cold_cached_and_in_company(path: Path, reference: Context, n_company: int) -> None:
    """Case 65, and invariant 1."""
    prompt = ids(150, 1)
    expected = alone(reference, prompt, 12)
    with opened(path, 4096, n_slots=16) as ctx:
        bench = Bench(ctx, n_slots=16)
        for _ in range(2):
            for i in range(n_company):
                bench.submit(ids(20 + i, 50 + i), 12, sampling=GREEDY)
            told = bench.submit(prompt, 12)
            bench.run()
            assert told.answer == expected
        assert told.end.timings.cache_n == 149


def test_a_prefix_is_computed_once_with_windows_too(path: Path, reference: Context) -> None:
    prefix = ids(200, 1)
    prompts = [[*prefix, 100 + i, *ids(5 + 7 * i, 10 + i)] for i in range(6)]
    with opened(path, 2048, n_slots=6) as ctx:
        bench = Bench(ctx, n_slots=6)
        for _ in range(2):
            told = [bench.submit(prompt) for prompt in prompts]
            bench.run()
            assert [t.answer for t in told] == [alone(reference, prompt) for prompt in prompts]
        assert bench.scheduler.counters.n_prompt == 200 + sum(len(prompt) - 200 for prompt in prompts) + 6
        bench.assert_nothing_lost()


def test_a_prompt_is_found_again_but_for_its_last_token(path: Path) -> None:
    with opened(path, 512) as ctx:
        bench = Bench(ctx)
        for n in (140, *range(168, 180)):  # at 175 the last token sees a block's last cell
            for _ in range(2):
                told = bench.submit(ids(n, n), 2)
                bench.run()
            assert told.end.timings.cache_n == n - 1


def test_a_conversation_goes_on_from_its_last_answer_and_from_a_message(path: Path) -> None:
    first, system = ids(60, 1), ids(100, 2)
    with opened(path, 2048) as ctx:
        bench = Bench(ctx)
        told = bench.submit(system + first, 20, points=(100,))
        bench.run()
        turn = system + first + told.ids
        longer = bench.submit(turn + ids(10, 3), 1)
        other = bench.submit([*system, 120, *ids(10, 4)], 1)
        bench.run()
        assert (longer.end.timings.cache_n, other.end.timings.cache_n) == (len(turn) - 1, 100)


def test_a_context_shift_is_refused_where_a_window_has_dropped_what_would_be_seen(path: Path) -> None:
    with opened(path, 512) as ctx:
        if ctx.kv.has_window:
            with pytest.raises(UnsupportedError, match="window"):
                Bench(ctx, context_shift=True)
        else:
            Bench(ctx, context_shift=True)
