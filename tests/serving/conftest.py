"""What the tests of the server share: the application in this process over a fake engine."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from llmkit.serving.app import build_app
from llmkit.serving.served import Served, ServerState
from llmkit.serving.settings import ServeSettings
from tests.serving.fakes import FakeEngine, FakeGrammars, FakeTemplate, FakeTokenizer, fake_context, fake_model


def deliver_to(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    """As the server does: what happens after the loop's end is told to nobody."""

    def deliver(function: Callable[[], None]) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(function)

    return deliver


class Site:
    """A server without sockets. `engine` is fake; `get` and `post` give responses."""

    def __init__(self, **settings: Any) -> None:
        settings = {"metrics": True, "sse_ping_s": 0.0, **settings}
        self.engine = FakeEngine()
        self.state = ServerState(ServeSettings(**settings))
        self.state.served = Served(
            fake_model(), FakeTokenizer(), fake_context(), self.engine, FakeTemplate(), FakeGrammars(), 4, 128, "fake"  # type: ignore[arg-type]
        )  # fmt: skip
        self.app = build_app(self.state)

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request in a loop of its own."""

        async def ask() -> httpx.Response:
            self.engine.hand_over = deliver_to(asyncio.get_running_loop())
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, json: Any = None, **more: Any) -> httpx.Response:
        return self.request("POST", path, json=json, **more)


@pytest.fixture
def make_site() -> Iterator[Any]:
    made: list[Site] = []

    def make(**settings: Any) -> Site:
        made.append(Site(**settings))
        return made[-1]

    yield make
    for site in made:
        site.engine.close()


@pytest.fixture
def site(make_site: Any) -> Site:
    found: Site = make_site()
    return found
