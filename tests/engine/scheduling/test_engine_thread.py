"""The engine's thread: what is refused at the door, how events leave, that it sleeps, drains and ends."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.engine.context import Context
from llmkit.engine.generation.generate import StopReason
from llmkit.engine.scheduling.engine_thread import EngineThread
from llmkit.engine.scheduling.requests import (
    CompletionRequest,
    EngineParams,
    Event,
    Failed,
    Finished,
    RequestHandle,
    TokenEvent,
)
from llmkit.errors import DrainingError, LlmkitError, PromptTooLongError, QueueFullError, UsageError
from llmkit.params import GenerateParams, SamplingParams
from tests.engine.scheduling.driving import GREEDY, alone, ids, opened
from tests.make_models import make_model

WAIT_S = 60.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("thread") / "m.gguf", n_ctx_train=4096)


@pytest.fixture
def ctx(path: Path) -> Iterator[Context]:
    with opened(path, 2048) as ctx:
        yield ctx


class Client:
    """Collects the events of one request."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.first, self.over = threading.Event(), threading.Event()
        self.n_open = 1

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.first.set()
        if isinstance(event, Finished | Failed):
            self.n_open -= 1
            if self.n_open == 0:
                self.over.set()

    def end(self) -> Any:
        assert self.over.wait(WAIT_S), "no end came"
        return self.events[-1]

    @property
    def answer(self) -> tuple[list[int], list[Any]]:
        tokens = [event for event in self.events if isinstance(event, TokenEvent)]
        return [token.id for token in tokens], [token.logprobs for token in tokens]


def request(
    prompt: list[int], n_predict: int = 4, sampling: SamplingParams = GREEDY, **options: Any
) -> CompletionRequest:
    return CompletionRequest(prompt, GenerateParams(n_predict, n_logprobs=3), sampling, **options)


def submit(engine: EngineThread, *args: Any, **options: Any) -> tuple[RequestHandle, Client]:
    client = Client()
    client.n_open = options.get("n_cmpl", 1)
    return engine.submit(request(*args, **options), client), client


def engine_of(ctx: Context, **params: Any) -> EngineThread:
    return EngineThread(ctx, None, EngineParams(**params))


def assert_nothing_lost(engine: EngineThread) -> None:
    def clear(ctx: Context, tree: Any) -> list[int]:
        tree.clear()
        return [pool.n_used for pool in ctx.kv.pools]

    assert engine.call(clear).result(WAIT_S) == [0] * len(engine.ctx.kv.pools)
    assert not any(slot.is_processing for slot in engine.slots())


def test_sixty_four_clients_at_once_get_what_each_gets_alone(path: Path) -> None:
    """Case 45, with fewer slots than clients."""
    with opened(path, 2048, n_slots=16) as ctx:
        expected = [alone(ctx, ids(10 + i, i), 4) for i in range(64)]
        with engine_of(ctx, n_slots=16) as engine:
            clients = [submit(engine, ids(10 + i, i), 4)[1] for i in range(64)]
            assert [client.end().stop_reason for client in clients] == [StopReason.LIMIT] * 64
            assert [client.answer for client in clients] == expected
            counters = engine.counters()
            assert (counters.n_finished, counters.n_predicted) == (64, 256)
            assert (counters.n_processing, counters.n_waiting) == (0, 0)
            assert (counters.queue_s.n, counters.first_token_s.n, counters.between_tokens_s.n) == (64, 64, 192)
            assert_nothing_lost(engine)


def test_a_seed_gives_the_same_text_in_any_company(ctx: Context) -> None:
    """Case 20; continuation i has the seed after the one before."""
    sampling = SamplingParams(temp=1.0, seed=7)
    expected = [alone(ctx, ids(10, 1), 12, SamplingParams(temp=1.0, seed=7 + i))[0] for i in range(2)]
    with engine_of(ctx) as engine:
        others = [submit(engine, ids(30, i), 20)[1] for i in range(5)]
        client = submit(engine, ids(10, 1), 12, sampling, n_cmpl=2)[1]
        client.end()
        ends = {event.index: event for event in client.events if isinstance(event, Finished)}
        assert [list(ends[i].ids) for i in range(2)] == expected
        assert [ends[i].seed for i in range(2)] == [7, 8]
        for other in others:
            other.end()


class TwoThenOne:
    """A grammar: token 5 or 6, then again, then 9."""

    def __init__(self, n: int = 0) -> None:
        self.n = n

    @property
    def finished(self) -> bool:
        return self.n == 3

    def start_mask(self) -> None:
        pass

    def mask(self) -> Any:
        return np.array([1 << 9 if self.n == 2 else 3 << 5, 0, 0, 0], np.uint32)

    def accept(self, token: int) -> None:
        self.n += 1

    def clone(self) -> "TwoThenOne":
        return TwoThenOne(self.n)


def test_each_continuation_follows_the_grammar_for_itself(ctx: Context) -> None:
    with engine_of(ctx) as engine:
        client = submit(engine, ids(10, 1), 50, SamplingParams(temp=2.0, seed=1), n_cmpl=3, grammar=TwoThenOne())[1]
        client.end()
        ends = [event for event in client.events if isinstance(event, Finished)]
        assert [end.stop_reason for end in ends] == [StopReason.EOS] * 3
        assert all(end.ids[2:] == (9,) and set(end.ids[:2]) <= {5, 6} for end in ends)


def test_what_cannot_be_computed_is_refused_at_the_door(ctx: Context) -> None:
    with engine_of(ctx, n_slots=2, n_queue=1, n_ctx_slot=64) as engine:
        for wrong in (
            request([1, 128]), request([-1]), request([1], id_slot=2), request([1], n_cmpl=4),
            request([1], sampling=SamplingParams(logit_bias=((128, 1.0),))),
        ):  # fmt: skip
            with pytest.raises(UsageError):
                engine.submit(wrong, Client())
        with pytest.raises(PromptTooLongError, match=r"65 tokens.*64") as caught:
            engine.submit(request(ids(65, 1)), Client())
        assert (caught.value.n_prompt, caught.value.n_ctx) == (65, 64)
        assert [submit(engine, ids(n, 1), -1)[1].end().stop_reason for n in (63, 64)] == [StopReason.CONTEXT] * 2


def held(engine: EngineThread) -> tuple[threading.Event, Any]:
    """Keeps the engine's thread from making a step until the event is set."""
    release, entered = threading.Event(), threading.Event()

    def wait(ctx: Any, tree: Any) -> None:
        entered.set()
        assert release.wait(WAIT_S)

    future = engine.call(wait)
    assert entered.wait(WAIT_S)
    return release, future


def test_a_full_queue_refuses_and_says_when_to_come_again(ctx: Context) -> None:
    with engine_of(ctx, n_slots=1, n_queue=2) as engine:
        release, _ = held(engine)
        clients = [submit(engine, ids(5, i))[1] for i in range(3)]
        with pytest.raises(QueueFullError) as caught:
            submit(engine, ids(5, 9))
        assert caught.value.retry_after_s >= 1
        assert engine.counters().n_refused == 1
        with pytest.raises(QueueFullError):
            submit(engine, ids(5, 9), n_cmpl=2)
        assert engine.counters().n_refused == 3  # answers are counted
        release.set()
        assert [client.end().stop_reason for client in clients] == [StopReason.LIMIT] * 3
        assert submit(engine, ids(5, 9))[1].end().stop_reason is StopReason.LIMIT


def test_every_answer_is_counted_once(ctx: Context) -> None:
    """Submitted are finished, cancelled and failed ones, when nothing runs or waits."""
    with engine_of(ctx, n_slots=2) as engine:
        release, _ = held(engine)
        clients = [submit(engine, ids(5, i), n_cmpl=2) for i in range(3)]
        engine.cancel(clients[1][0])
        release.set()
        for _, client in clients:
            client.end()
        engine.call(lambda ctx, tree: None).result(WAIT_S)
        counters = engine.counters()
        assert (counters.n_submitted, counters.n_finished, counters.n_cancelled, counters.n_failed) == (6, 4, 2, 0)


def test_a_step_is_one_hand_over_wherever_that_leads(ctx: Context) -> None:
    delivered: list[int] = []

    def hand_over(deliver: Callable[[], None]) -> None:
        delivered.append(1)
        deliver()

    with EngineThread(ctx, None, EngineParams(), hand_over) as engine:
        release, _ = held(engine)
        clients = [submit(engine, ids(5, i), 6)[1] for i in range(4)]
        release.set()
        for client in clients:
            client.end()
        assert len(delivered) == engine.counters().n_decode == 6


def test_calls_run_between_steps_and_bring_back_errors(ctx: Context) -> None:
    with engine_of(ctx) as engine:
        _, client = submit(engine, ids(5, 1), 50)
        thread = engine.call(lambda ctx, tree: threading.current_thread().name).result(WAIT_S)
        assert thread == "llmkit-engine"
        with pytest.raises(ZeroDivisionError):
            engine.call(lambda ctx, tree: 1 / 0).result(WAIT_S)
        assert client.end().stop_reason is StopReason.LIMIT
    with pytest.raises(DrainingError):
        engine.call(lambda ctx, tree: None).result(WAIT_S)


def test_a_receiver_that_fails_harms_nobody(ctx: Context) -> None:
    def failing(event: Event) -> None:
        raise RuntimeError

    with engine_of(ctx) as engine:
        engine.submit(request(ids(5, 1)), failing)
        assert submit(engine, ids(5, 2))[1].end().stop_reason is StopReason.LIMIT


def test_a_fault_of_ours_fails_what_is_there_and_nothing_later(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of(ctx) as engine:
        release, _ = held(engine)
        _, client = submit(engine, ids(5, 1))
        monkeypatch.setattr(engine.scheduler, "_land", lambda plan, rows: 1 / 0)
        release.set()
        assert isinstance(client.end(), Failed)
        assert isinstance(client.end().error, LlmkitError)
        monkeypatch.undo()
        assert submit(engine, ids(5, 1))[1].end().stop_reason is StopReason.LIMIT
        assert_nothing_lost(engine)


def test_draining_finishes_what_is_there_and_takes_nothing_in(ctx: Context) -> None:
    with engine_of(ctx) as engine:
        clients = [submit(engine, ids(5, i), 20)[1] for i in range(6)]
        assert engine.drain(WAIT_S)
        assert [client.end().stop_reason for client in clients] == [StopReason.LIMIT] * 6
        with pytest.raises(DrainingError):
            submit(engine, ids(5, 1))


def test_a_drain_that_takes_too_long_cancels_the_rest(ctx: Context) -> None:
    with engine_of(ctx) as engine:
        _, client = submit(engine, ids(5, 1), -1)
        assert client.first.wait(WAIT_S)
        assert not engine.drain(0)
        assert client.end().stop_reason is StopReason.INTERRUPTED


def test_closing_tells_everybody(ctx: Context) -> None:
    engine = engine_of(ctx, n_slots=1)
    clients = [submit(engine, ids(5, i), -1)[1] for i in range(3)]
    engine.close()
    assert [client.end().stop_reason for client in clients] == [StopReason.INTERRUPTED] * 3
    engine.close()


def test_an_idle_engine_does_not_run(ctx: Context) -> None:
    with engine_of(ctx) as engine:
        submit(engine, ids(5, 1))[1].end()
        engine.call(lambda ctx, tree: None).result(WAIT_S)
        times = []
        for _ in range(2):
            times.append(engine.call(lambda ctx, tree: time.thread_time()).result(WAIT_S))
            time.sleep(0.1)
        assert times[1] - times[0] < 0.02


@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_starts_and_cancels_leave_no_trace(path: Path, seed: int) -> None:
    """Cases 29 and 46: three times more requests than slots, a pool that is too small, blocks that are poisoned."""
    draw = random.Random(seed)
    with opened(path, 384) as ctx, engine_of(ctx, n_slots=4) as engine:
        expected = alone(ctx, ids(30, 1), 10)
        live: list[tuple[RequestHandle, Client]] = []
        for i in range(200):
            prompt = ids(draw.choice((20, 60)), draw.randrange(3)) + ids(draw.randrange(1, 90), i)
            live.append(submit(engine, prompt, draw.choice((0, 3, 40, -1)), cache_prompt=draw.random() < 0.8))
            if len(live) >= 12:
                handle, client = live.pop(draw.randrange(len(live)))
                engine.cancel(handle)
                client.end()
        for handle, _ in live:
            engine.cancel(handle)
        assert {type(client.end()) for _, client in live} == {Finished}
        client = submit(engine, ids(30, 1), 10)[1]
        assert client.end().stop_reason is StopReason.LIMIT
        assert client.answer == expected
        assert_nothing_lost(engine)
