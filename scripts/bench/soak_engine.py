"""A soak's server within this process: the engine's thread alone, without HTTP."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from llmkit.engine.context import Context
from llmkit.engine.generation.generate import StopReason
from llmkit.engine.scheduling.engine_thread import EngineThread
from llmkit.engine.scheduling.requests import CompletionRequest, EngineParams, Event, Failed, Finished, TokenEvent
from llmkit.models.model import Model
from llmkit.params import ContextParams, GenerateParams, SamplingParams
from scripts.bench.soak_loads import WAIT_S, Asked, resident_mb

N_CTX_SLOT = 4096


class EngineServer:
    """An engine of its own; the clients of it."""

    eog_ids: frozenset[int] = frozenset()

    def __init__(self, model: Model, n_slots: int, n_cells: int) -> None:
        self._ctx = Context(model, ContextParams(n_cells, n_seq_max=n_slots))
        params = EngineParams(n_slots, n_ctx_slot=min(N_CTX_SLOT, n_cells), n_queue=8 * n_slots)
        self._engine = EngineThread(self._ctx, None, params)
        self._ended = queue.SimpleQueue[Asked]()
        self.n_vocab, self.n_open = model.config.n_vocab, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.close()
        self._ctx.close()

    def ask(self, asked: Asked, key: int = 0, cached: bool = True) -> Callable[[], None]:
        """Hands a request in; gives what cancels it."""

        def on_event(event: Event) -> None:
            if isinstance(event, TokenEvent):
                assert event.logprobs is not None
                asked.tokens.append((event.id, event.logprobs.chosen.logprob))
            elif isinstance(event, Failed):
                asked.outcome = f"failed: {event.error}"
            elif isinstance(event, Finished):
                asked.outcome = "cancelled" if event.stop_reason is StopReason.INTERRUPTED else "finished"
            if asked.outcome:
                self._ended.put(asked)

        params, sampling = GenerateParams(asked.n_predict, n_logprobs=0), SamplingParams(temp=0)
        self.n_open += 1
        request = CompletionRequest(asked.prompt, params, sampling, namespace=f"key {key}", cache_prompt=cached)
        handle = self._engine.submit(request, on_event)
        return lambda: self._engine.cancel(handle)

    def over(self) -> Asked:
        """The next that ends."""
        asked = self._ended.get(timeout=WAIT_S)
        self.n_open -= 1
        return asked

    def counts(self) -> dict[str, int]:
        """What was counted since the start."""
        counters = self._engine.counters()
        names = ("tokens_asked", "tokens_hit", "n_evicted", "n_parked", "n_cancelled")
        return {name: getattr(counters, name) for name in names}

    def held_mb(self) -> float:
        """Memory of the process but for the cells, which are bounded from the start."""
        return resident_mb(os.getpid()) - self._ctx.memory.usage().bytes_peak / 1e6

    def lost(self) -> int:
        """Blocks that nobody gives back when all is through and the cache is empty, and slots that are busy."""

        def clear(ctx: Context, tree: Any) -> int:
            tree.clear()
            return sum(pool.n_used for pool in ctx.kv.pools)

        return int(self._engine.call(clear).result()) + sum(slot.is_processing for slot in self._engine.slots())
