"""Driving a scheduler by hand over a real context, and the answers that requests get alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmkit.engine.context import Context
from llmkit.engine.generation.generate import Generation, NoText
from llmkit.engine.generation.sampler import Sampler
from llmkit.engine.scheduling.job import Job
from llmkit.engine.scheduling.requests import (
    CompletionRequest,
    EngineParams,
    Event,
    Failed,
    Finished,
    RequestHandle,
    TokenEvent,
)
from llmkit.engine.scheduling.scheduler import Scheduler
from llmkit.memory.prefix_tree import PrefixTree
from llmkit.params import ContextParams, GenerateParams, SamplingParams
from tests.engine_runs import load

GREEDY = SamplingParams(temp=0)


@dataclass
class Told:
    """What one continuation's client was told."""

    events: list[Event] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [event.id for event in self.events if isinstance(event, TokenEvent)]

    @property
    def logprobs(self) -> list[Any]:
        return [event.logprobs for event in self.events if isinstance(event, TokenEvent)]

    @property
    def answer(self) -> tuple[list[int], list[Any]]:
        return self.ids, self.logprobs

    @property
    def end(self) -> Any:
        assert self.events, "nothing was told"
        assert isinstance(self.events[-1], Finished | Failed), self.events[-1]
        return self.events[-1]

    @property
    def is_over(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Finished | Failed)


class _Limits:
    n_tokens = 0

    def __init__(self, n_ctx: int) -> None:
        self.n_ctx = n_ctx

    def decode(self, segments: list[Any]) -> Any:
        raise AssertionError


class Bench:
    """A scheduler whose clock stands still unless a test moves it; each decode is noted as (job order, n) pairs."""

    def __init__(self, ctx: Context, **params: Any) -> None:
        self.ctx, self.now = ctx, 0.0
        self.tree = PrefixTree(ctx.kv)
        self.scheduler = Scheduler(ctx, self.tree, EngineParams(**params), clock=lambda: self.now)
        self.told: list[Told] = []
        self.handles: list[RequestHandle] = []

    def submit(self, prompt: Sequence[int], n_predict: int = 4, **options: Any) -> Told:
        sampling = options.pop("sampling", GREEDY)
        eog_ids, private = options.pop("eog_ids", frozenset()), options.pop("private", None)
        cached, stream = options.pop("cache_prompt", True), options.pop("stream", NoText())
        params = GenerateParams(n_predict, n_logprobs=options.pop("n_logprobs", 3))
        request = CompletionRequest(tuple(prompt), params, sampling, **options)
        told = Told()
        handle = RequestHandle(len(self.handles), request, told.events.append, self.now)
        shift = self.scheduler.params.context_shift
        for i in range(request.n_cmpl):
            limits = _Limits(1 << 60 if shift else self.scheduler.n_ctx)
            sampler = Sampler(sampling)
            sampler.accept(prompt)
            generation = Generation(limits, limits, tuple(prompt), sampler, params, eog_ids, stream)
            self.scheduler.submit(Job(handle, i, generation, cached, private))
        self.handles.append(handle)
        self.told.append(told)
        return told

    def step(self) -> bool:
        worked = self.scheduler.step()
        self.deliver()
        return worked

    def deliver(self) -> None:
        """Gives the clients what was told since the last time."""
        events, self.scheduler.events = self.scheduler.events, []
        for on_event, event in events:
            on_event(event)

    def run(self, most: int = 10_000) -> None:
        """Steps until all is through."""
        for _ in range(most):
            if not self.scheduler.jobs:
                return
            self.step()
        raise AssertionError("it does not come to an end")

    def phases(self) -> list[str]:
        return [job.phase.name for job in sorted(self.scheduler.jobs, key=lambda job: job.order)]

    def assert_nothing_lost(self) -> None:
        """Nobody holds a cell but the tree, and without it nobody at all."""
        assert not self.scheduler.jobs
        assert all(slot.job is None for slot in self.scheduler.slots)
        for slot in self.scheduler.slots:
            assert self.ctx.memory.sequence(slot.id).n_tokens == 0
        self.tree.clear()
        assert [pool.n_used for pool in self.ctx.kv.pools] == [0] * len(self.ctx.kv.pools)


@contextmanager
def opened(path: Path, n_ctx: int = 512, n_slots: int = 4, seed: int = 1) -> Iterator[Context]:
    """A context whose blocks lie in random places and are full of NaN when nobody has them."""
    with Context(load(path), ContextParams(n_ctx, n_threads=1, type_k="f32", type_v="f32", n_seq_max=n_slots)) as ctx:
        for pool in ctx.kv.pools:
            pool.shuffle(seed)
            pool.poison(True)
        yield ctx


def alone(
    ctx: Context, prompt: Sequence[int], n_predict: int = 4, sampling: SamplingParams = GREEDY, n_logprobs: int = 3
) -> tuple[list[int], list[Any]]:
    """What the prompt gives by itself: ids and log-probabilities."""
    seq = ctx.new_sequence()
    generation = Generation(ctx, seq, list(prompt), Sampler(sampling), GenerateParams(n_predict, n_logprobs=n_logprobs))
    tokens = list(generation)
    ctx.free_sequence(seq)
    return [token.id for token in tokens], [token.logprobs for token in tokens]


def ids(n: int, seed: int, n_vocab: int = 128) -> list[int]:
    """Random tokens."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, n_vocab, n)]
