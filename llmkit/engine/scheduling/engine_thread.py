"""The thread that decodes: it takes in requests, makes steps while there is something to do, and sleeps otherwise.

Owns the thread, what is handed to it from others, and how events leave it. What a step does is scheduler.py's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.engine.generation.batched import seeds
from llmkit.engine.generation.generate import Generation, NoText, TextStream
from llmkit.engine.generation.sampler import SampledVocabulary, Sampler
from llmkit.engine.generation.stop_strings import StopStrings
from llmkit.engine.scheduling.counters import Counters
from llmkit.engine.scheduling.job import Job
from llmkit.engine.scheduling.requests import CompletionRequest, EngineParams, Event, OnEvent, RequestHandle, SlotInfo
from llmkit.engine.scheduling.scheduler import Scheduler
from llmkit.errors import DrainingError, LlmkitError, PromptTooLongError, QueueFullError, UsageError
from llmkit.memory.prefix_tree import PrefixTree
from llmkit.params import SamplingParams

_log = logging.getLogger(__name__)

_NO_LIMIT = 1 << 62


class Tokenizer(SampledVocabulary, Protocol):
    """What is needed of a tokenizer."""

    @property
    def eog_ids(self) -> frozenset[int]: ...

    def stream(self) -> TextStream: ...


class _Limits:
    """What a generation asks of its context and its sequence, before it has any."""

    n_tokens = 0

    def __init__(self, n_ctx: int) -> None:
        self.n_ctx = n_ctx

    def decode(self, segments: list[Segment]) -> NDArray[np.float32]:
        """Jobs are decoded by the scheduler."""
        raise AssertionError


class EngineThread:
    """See requests.Engine for what each method promises. It runs from being made until `close`."""

    def __init__(
        self,
        ctx: Context,
        tokenizer: Tokenizer | None,
        params: EngineParams | None = None,
        hand_over: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self.ctx, self.tokenizer, self.params = ctx, tokenizer, params or EngineParams()
        self.tree = PrefixTree(ctx.kv, max_bytes=self.params.tree_bytes)
        self.scheduler = Scheduler(ctx, self.tree, self.params)
        self._hand_over = hand_over or (lambda deliver: deliver())
        self._numbers = count()
        self._inbox = deque[Job]()
        self._calls = deque[tuple[Callable[[Context, PrefixTree], Any], Future[Any]]]()
        self._changed = threading.Condition()
        self._draining = self._closing = self._idle = False
        self._thread = threading.Thread(target=self._run, name="llmkit-engine", daemon=True)
        self._thread.start()

    # -- from any thread ------------------------------------------------------------------------------------------

    def submit(self, request: CompletionRequest, on_event: OnEvent) -> RequestHandle:
        """Checks the request and puts it into the queue."""
        handle = RequestHandle(next(self._numbers), request, on_event, time.perf_counter())
        self._check(request)
        jobs = self._jobs_of(handle)
        with self._changed:
            if self._draining:
                raise DrainingError("the engine is ending and takes in nothing more", retry_after_s=5)
            n_there, n_most = len(self._inbox) + len(self.scheduler.jobs), self.params.n_slots + self.params.n_queue
            if n_there + len(jobs) > n_most:
                self.scheduler.counters.n_refused += len(jobs)
                message = f"{n_there} texts are being computed or waiting, and {n_most} may"
                raise QueueFullError(message, "Try again later.", self._retry_after_s(n_there))
            self.scheduler.counters.n_submitted += len(jobs)
            self._inbox.extend(jobs)
            self._changed.notify_all()
        return handle

    def cancel(self, handle: RequestHandle) -> None:
        """Ends a request with the next step."""
        with self._changed:
            handle.cancelled = True
            self._changed.notify_all()

    def slots(self) -> list[SlotInfo]:
        """What each slot is doing."""
        return [slot.info() for slot in self.scheduler.slots]

    def counters(self) -> Counters:
        """A copy of the numbers."""
        scheduler, counters = self.scheduler, self.scheduler.counters.snapshot()
        counters.n_processing = sum(slot.job is not None for slot in scheduler.slots)
        counters.n_waiting = len(scheduler.queue) + len(self._inbox)
        counters.n_evicted = self.tree.stats.evictions
        return counters

    def call(self, function: Callable[[Context, PrefixTree], Any]) -> Future[Any]:
        """Runs function(ctx, tree) between two steps."""
        future = Future[Any]()
        with self._changed:
            if self._closing:
                future.set_exception(DrainingError("the engine has ended"))
            else:
                self._calls.append((function, future))
                self._changed.notify_all()
        return future

    def drain(self, timeout_s: float) -> bool:
        """Whether all was through before the timeout; what was not is cancelled."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            in_time = self._changed.wait_for(lambda: self._idle, timeout_s)
        if not in_time:
            self._cancel_all()
            with self._changed:
                self._changed.wait_for(lambda: self._idle or self._closing)
        return in_time

    def close(self) -> None:
        """Cancels what there is and ends the thread. The context stays open; closing again does nothing."""
        with self._changed:
            self._draining = self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- requests to jobs -----------------------------------------------------------------------------------------

    def _check(self, request: CompletionRequest) -> None:
        n_vocab, params = self.ctx.model.config.n_vocab, self.params
        if len(request.prompt_ids) > self.scheduler.n_ctx:
            raise PromptTooLongError(len(request.prompt_ids), self.scheduler.n_ctx)
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < n_vocab:
            raise UsageError(f"the prompt holds a token that is not one of the model's {n_vocab}")
        if request.id_slot >= params.n_slots:
            raise UsageError(
                f"id_slot is {request.id_slot}, but there are {params.n_slots} slots", "They count from 0."
            )
        if request.n_cmpl > params.n_slots + params.n_queue:
            raise UsageError(f"n_cmpl is {request.n_cmpl}; at most {params.n_slots + params.n_queue} are computed")
        request.sampling.check_ids(n_vocab)

    def _jobs_of(self, handle: RequestHandle) -> list[Job]:
        """A job for each continuation. Those of a prompt that is not to be shared share it among themselves."""
        request, cached = handle.request, handle.request.cache_prompt and self.params.cache_prompt
        private = f"\0request {handle.id}" if request.n_cmpl > 1 and not cached else None
        first = self._sampler(request, request.sampling)
        jobs = []
        for i, seed in enumerate(seeds(first.seed, request.n_cmpl)):
            sampler = self._sampler(request, replace(request.sampling, seed=seed)) if i else first
            jobs.append(Job(handle, i, self._generation(request, sampler), cached, private))
        return jobs

    def _sampler(self, request: CompletionRequest, sampling: SamplingParams) -> Sampler:
        grammar = None if request.grammar is None else request.grammar.clone()
        return Sampler(sampling, self.tokenizer.eog_ids if self.tokenizer else (), self.tokenizer, grammar)

    def _generation(self, request: CompletionRequest, sampler: Sampler) -> Generation:
        tokenizer = self.tokenizer
        limits = _Limits(_NO_LIMIT if self.params.context_shift else self.scheduler.n_ctx)
        sampler.accept(request.prompt_ids)
        return Generation(
            limits, limits, request.prompt_ids, sampler, request.params,
            tokenizer.eog_ids if tokenizer else frozenset(), tokenizer.stream() if tokenizer else NoText(),
            StopStrings(request.stops), request.stop_ids,
        )  # fmt: skip

    def _retry_after_s(self, n_there: int) -> float:
        """When a place may be free: what a text took on average, times those ahead in each slot."""
        counters = self.scheduler.counters
        seconds = (counters.prompt_s + counters.predicted_s) / max(1, counters.n_finished + counters.n_cancelled)
        return float(min(60, max(1, round(seconds * n_there / self.params.n_slots))))

    # -- the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._has_work():
            self._make_calls()
            try:
                self.scheduler.step()
            except Exception as error:
                self._recover(error)
            self._deliver()
        self._end()

    def _has_work(self) -> bool:
        """Waits until there is something to do; False when the thread shall end. Takes in new jobs."""
        with self._changed:
            while not (self._closing or self._inbox or self._calls or self.scheduler.jobs):
                self._idle = True
                self._changed.notify_all()
                self._changed.wait()
            self._idle = False
            while self._inbox:
                self.scheduler.submit(self._inbox.popleft())
            return not self._closing

    def _make_calls(self) -> None:
        for _ in range(len(self._calls)):  # those that come meanwhile wait for a step
            function, future = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(self.ctx, self.tree))
            except BaseException as error:
                future.set_exception(error)

    def _recover(self, error: Exception) -> None:
        """A fault of ours: the jobs that are there fail, those to come will be computed."""
        _log.exception("the engine's thread met an unexpected error")
        self.scheduler.fail_all(
            LlmkitError(f"an unexpected error: {error!r}", "This is a fault in llmkit; see its log.")
        )

    def _deliver(self) -> None:
        """Hands over the events of a step, all at once."""
        events, self.scheduler.events = self.scheduler.events, []
        if not events:
            return
        try:
            self._hand_over(partial(_tell, events))
        except Exception:
            _log.exception("events could not be handed over")

    def _cancel_all(self) -> None:
        with self._changed:
            for job in [*self._inbox, *self.scheduler.jobs]:
                job.handle.cancelled = True
            self._changed.notify_all()

    def _end(self) -> None:
        """Cancels what is left."""
        try:
            for job in self.scheduler.jobs:
                job.handle.cancelled = True
            self.scheduler.end_unwanted()
        except Exception as error:
            self._recover(error)
        self._deliver()
        self.tree.close()
        with self._changed:
            self._idle = True
            calls, self._calls = self._calls, deque()
            self._changed.notify_all()
        for _, future in calls:
            future.set_exception(DrainingError("the engine has ended"))


def _tell(events: list[tuple[OnEvent, Event]]) -> None:
    for on_event, event in events:
        try:
            on_event(event)
        except Exception:
            _log.exception("an event's receiver failed")
