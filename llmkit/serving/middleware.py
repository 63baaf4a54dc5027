"""What happens around every request: an id, who asks, the size of the body, cross-origin headers, a line in the log.

Owns what holds for all routes. Knows none of them but those that need no key.
"""

from __future__ import annotations

import re
import secrets
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmkit import report
from llmkit.serving.calls import ClientGone
from llmkit.serving.errors import ApiError, busy, error_response
from llmkit.serving.json_body import too_large
from llmkit.serving.served import ServerState

PUBLIC_PATHS = ("/health", "/v1/health", "/models", "/v1/models", "/")
_SOUND_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass
class RequestContext:
    """What is known of a request besides its body. notes: what its line in the log says behind the status."""

    id: str
    namespace: str
    notes: dict[str, object] = field(default_factory=dict)


def context_of(scope: Scope) -> RequestContext:
    """That of a request."""
    found: RequestContext = scope["llmkit"]
    return found


def is_openai(path: str) -> bool:
    """Whether a path is one of OpenAI's, where errors have its codes."""
    return path.startswith("/v1/") or path == "/chat/completions"


class Around:
    """The outermost application. Whatever happens inside, the client gets an answer and the server goes on."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        context = RequestContext(given if _SOUND_ID.fullmatch(given) else secrets.token_hex(8), "")
        scope["llmkit"] = context
        answer = _Sender(send, self._cors(headers, context.id))
        if scope["method"] == "HEAD":  # uvicorn leaves out the body by its own copy of this
            scope = {**scope, "method": "GET"}
        began = time.perf_counter()
        try:
            response = self._refusal(scope, headers, context)
            if response is not None:
                await response(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        except ClientGone:
            answer.status = answer.status or 499  # nginx's number for it
            context.notes["client"] = "gone"
        except Exception as error:
            report.warning(f"{context.id}: " + "".join(traceback.format_exception(error)).rstrip())
            if not answer.status:
                failure = ApiError("server_error", f"internal error; the server's log tells more under {context.id}")
                await error_response(failure, openai=is_openai(self._path(scope)))(scope, receive, answer)
        finally:
            self._log(scope, context, answer.status, time.perf_counter() - began)

    def _path(self, scope: Scope) -> str:
        path: str = scope["path"]
        return path.removeprefix(self._state.settings.api_prefix)

    def _refusal(self, scope: Scope, headers: Headers, context: RequestContext) -> Response | None:
        """What is answered without looking at the route, or None to go on."""
        path = self._path(scope)
        try:
            if scope["method"] == "OPTIONS":
                return Response(status_code=200)
            if path not in PUBLIC_PATHS:
                context.namespace = self._state.keys.namespace(headers)
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length[:20]) > self._state.settings.max_body_bytes:
                raise too_large(self._state.settings.max_body_bytes)
            if self._state.draining and scope["method"] == "POST":
                raise busy("the server is ending", 5)
        except ApiError as error:
            return error_response(error, openai=is_openai(path))
        return None

    def _cors(self, headers: Headers, id: str) -> dict[str, str]:
        """As llama.cpp: the origin is echoed if it may be, and a preflight is told what else may be."""
        found = {"X-Request-Id": id, "Server": "llmkit"}
        origin, allowed = headers.get("origin"), self._state.settings.cors_origins
        if origin is None or not ("*" in allowed or origin in allowed):
            return found
        found |= {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true", "Vary": "Origin"}
        if "access-control-request-method" in headers:
            found["Access-Control-Allow-Methods"] = "GET, POST, DELETE, OPTIONS"
            found["Access-Control-Allow-Headers"] = headers.get("access-control-request-headers", "*")
        return found

    def _log(self, scope: Scope, context: RequestContext, status: int, seconds: float) -> None:
        """GETs are looks at the server: they come often, and are told with -v only."""
        notes = "".join(f", {name} {value}" for name, value in context.notes.items())
        client = scope.get("client") or ("?", 0)
        path = scope["path"].encode("unicode_escape").decode("ascii")[:200]
        line = f"{context.id} {client[0]} {scope['method']} {path} {status} in {seconds * 1e3:.0f} ms{notes}"
        (report.note if scope["method"] == "POST" else report.detail)(line)


class _Sender:
    """Sends, with headers of ours, and remembers the status."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send, self._headers = send, headers
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: Any = MutableHeaders(scope=message)
            for name, value in self._headers.items():
                headers[name] = value
        await self._send(message)
