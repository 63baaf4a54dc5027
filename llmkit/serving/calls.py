"""Handing requests to the engine's thread and waiting for what comes back.

Owns the way between the event loop and the engine, and that nothing goes on for a client that has gone. Knows no route
and no JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.types import Receive

from llmkit.engine.generation.generate import StopReason
from llmkit.engine.generation.logprobs import Logprobs
from llmkit.engine.scheduling.requests import (
    CompletionRequest,
    Engine,
    Event,
    Failed,
    Finished,
    RequestHandle,
    Started,
    TokenEvent,
)


class ClientGone(Exception):
    """Nobody is there to be answered."""


@dataclass
class Answer:
    """One continuation as far as it is; `end` when it is through."""

    which: int
    index: int
    parts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    id_slot: int = -1
    end: Finished | None = None

    @property
    def text(self) -> str:
        """All that can be shown."""
        return "".join(self.parts)

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for why it ended."""
        assert self.end is not None
        return "stop" if self.end.stop_reason in (StopReason.EOS, StopReason.WORD) else "length"

    @property
    def stop_type(self) -> str:
        """llama.cpp's word for it."""
        assert self.end is not None
        words = {StopReason.EOS: "eos", StopReason.WORD: "word", StopReason.INTERRUPTED: "none"}
        return words.get(self.end.stop_reason, "limit")

    def add(self, event: Event) -> None:
        """Takes note of what happened."""
        if isinstance(event, Started):
            self.id_slot = event.id_slot
        elif isinstance(event, TokenEvent):
            self.ids.append(event.id)
            self.parts.append(event.text)
            if event.logprobs is not None:
                self.logprobs.append(event.logprobs)
        elif isinstance(event, Finished):
            self.id_slot, self.end = event.id_slot, event
            self.parts.append(event.tail)


class Call:
    """The requests of one HTTP request, handed in when it is made: LlmkitError if they are not taken, and none runs.
    Make it in a thread: what a request brings (stop strings, biases, a prompt for penalties) is taken in there.

    `async for batch in call.batches()` tells what happens; a request that fails raises its error there. `close` it.
    """

    def __init__(self, engine: Engine, requests: Sequence[CompletionRequest]) -> None:
        self._engine, self._requests = engine, requests
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._handles: list[RequestHandle] = []
        n_each = [request.n_cmpl for request in requests]
        firsts = [sum(n_each[:i]) for i in range(len(n_each))]
        self.answers = [Answer(firsts[i] + j, j) for i, n in enumerate(n_each) for j in range(n)]
        self._firsts = firsts

        try:
            for i, request in enumerate(requests):
                self._handles.append(engine.submit(request, partial(self._take, i)))
        except BaseException:
            self.close()
            raise

    def _take(self, i: int, event: Event) -> None:
        self._events.put_nowait((i, event))

    def close(self) -> None:
        """Cancels what still runs."""
        if any(answer.end is None for answer in self.answers):
            for handle in self._handles:
                self._engine.cancel(handle)

    async def batches(self, ping_s: float = 0.0) -> AsyncIterator[list[tuple[Answer, Event]]]:
        """What happened since the last time, until all is through. ping_s: after so long without anything comes an
        empty list; 0 or less: never.
        """
        n_open = len(self.answers)
        while n_open:
            batch: list[tuple[Answer, Event]] = []
            for i, event in await self._next(ping_s):
                answer = self.answers[self._firsts[i] + event.index]
                if isinstance(event, Failed):
                    raise event.error
                answer.add(event)
                n_open -= isinstance(event, Finished)
                batch.append((answer, event))
            yield batch

    async def _next(self, ping_s: float) -> list[tuple[int, Event]]:
        try:
            async with asyncio.timeout(ping_s if ping_s > 0 else None):
                found = [await self._events.get()]
        except TimeoutError:
            return []
        while not self._events.empty():
            found.append(self._events.get_nowait())
        return found

    async def finish(self) -> list[Answer]:
        """All answers, when they are through."""
        async for _ in self.batches():
            pass
        return self.answers


async def until_gone(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def run(call: Call, receive: Receive) -> list[Answer]:
    """The answers to a call; ClientGone as soon as the client has gone, and then nothing goes on."""
    work: asyncio.Task[Any] = asyncio.create_task(call.finish())
    gone: asyncio.Task[Any] = asyncio.create_task(until_gone(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGone
        return list(work.result())
    finally:
        call.close()
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)
