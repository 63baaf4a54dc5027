"""A client that goes away: what it asked for ends, and nobody else notices."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from llmkit.engine.scheduling.requests import CompletionRequest
from llmkit.serving.calls import Call
from llmkit.serving.sse import EventStream
from tests.serving.conftest import Site, deliver_to


class Client:
    """One connection without a socket. `go` closes it."""

    def __init__(self, site: Site, path: str, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self._messages = [{"type": "http.request", "body": raw, "more_body": False}]
        self._gone = asyncio.Event()
        self.sent: list[Any] = []
        scope = {
            "type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], "http_version": "1.1",
            "scheme": "http", "server": ("site", 80), "client": ("me", 1), "root_path": "", "raw_path": path.encode(),
        }  # fmt: skip
        self.task = asyncio.create_task(site.app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if self._messages:
            return self._messages.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    def go(self) -> None:
        self._gone.set()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_what_it_asked_for_is_cancelled(site: Site, path: str, queued: bool, stream: bool) -> None:
    async def go() -> None:
        site.engine.hand_over = deliver_to(asyncio.get_running_loop())
        site.engine.gate.clear()
        others = [Client(site, path, {"prompt": "x"}) for _ in range(4 if queued else 1)]
        await until(lambda: len(site.engine.handles) == len(others))
        client = Client(site, path, {"prompt": "y", "stream": stream})
        await until(lambda: len(site.engine.handles) == len(others) + 1)
        client.go()
        await asyncio.wait_for(client.task, 5)
        assert site.engine.handles[-1].cancelled
        site.engine.gate.set()
        await asyncio.wait_for(asyncio.gather(*(other.task for other in others)), 5)
        assert not any(handle.cancelled for handle in site.engine.handles[:-1])
        assert all(other.sent[0]["status"] == 200 for other in others)
        assert not queued or site.engine.handles[-1].id not in site.engine.stepped
        await until(lambda: site.engine.n_open == 0)

    asyncio.run(go())


def test_in_the_middle_of_a_stream(site: Site) -> None:
    async def go() -> None:
        site.engine.hand_over = deliver_to(asyncio.get_running_loop())
        site.engine.answer = lambda request: b"x" * 1_000_000
        client = Client(site, "/completion", {"prompt": ["y", "z"], "stream": True})
        await until(lambda: len(client.sent) > 5)
        client.go()
        await asyncio.wait_for(client.task, 5)
        await until(lambda: site.engine.n_open == 0)
        assert [handle.cancelled for handle in site.engine.handles] == [True, True]

    asyncio.run(go())


def test_one_of_several_prompts_that_is_not_taken(site: Site) -> None:
    """None of them runs then."""
    site.engine.n_queue = 1
    site.engine.gate.clear()
    site.engine.n_slots = 0
    assert site.post("/completion", {"prompt": ["a", "b", "c"]}).status_code == 503
    assert [handle.cancelled for handle in site.engine.handles] == [True]


def test_silence_is_told(site: Site) -> None:
    async def go() -> list[Any]:
        site.engine.gate.clear()
        call = Call(site.engine, [CompletionRequest([1])])
        found = []
        async for batch in call.batches(0.01):
            found.append(batch)
            if len(found) == 2:
                break
        call.close()
        return found

    assert asyncio.run(go()) == [[], []]
    site.engine.gate.set()


def test_a_client_that_takes_nothing(site: Site) -> None:
    """A stream is closed when a piece was not taken for too long."""
    closed = []

    async def events() -> Any:
        try:
            while True:
                yield b"data: 1\n\n"
        finally:
            closed.append("events")

    async def stuck(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    async def nothing() -> Any:
        await asyncio.sleep(60)

    async def go() -> None:
        stream = EventStream(events(), 0.05, lambda: closed.append("call"))
        await asyncio.wait_for(stream({"type": "http"}, nothing, stuck), 5)

    asyncio.run(go())
    assert closed == ["call", "events"]
