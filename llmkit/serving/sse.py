"""Server-sent events: an answer that grows.

Owns the form `data: JSON` and that the source is closed as soon as the client has gone.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llmkit.serving.calls import until_gone
from llmkit.serving.errors import dumps

DONE = b"data: [DONE]\n\n"
PING = b":\n\n"


def event(value: object) -> bytes:
    """One event."""
    return b"data: " + dumps(value) + b"\n\n"


class EventStream(Response):
    """Sends what a generator of events yields. It is closed at the end, and at once when the client goes or takes
    nothing for timeout_s; `close` is called then too, whether it had begun or not.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], timeout_s: float, close: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._timeout_s, self._close = events, timeout_s, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender: asyncio.Task[Any] = asyncio.create_task(self._send(send))
        gone: asyncio.Task[Any] = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._close()
            for task in (sender, gone):
                task.cancel()
            results = await asyncio.gather(sender, gone, return_exceptions=True)
            await self._events.aclose()
        if isinstance(results[0], Exception) and not isinstance(results[0], OSError):  # a TimeoutError is one
            raise results[0]
        if results[0] is not None and "llmkit" in scope:
            scope["llmkit"].notes["client"] = "gone"

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for part in self._events:
            async with asyncio.timeout(self._timeout_s):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
