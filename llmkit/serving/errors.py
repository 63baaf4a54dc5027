"""What is answered when something is wrong: `{"error": {"code", "message", "type"}}`, as llama.cpp's server has it.

Owns the types, their HTTP status, and which of our errors is which. On the OpenAI routes `code` is OpenAI's word where
there is one.
"""

import json
import math
from typing import Any

from starlette.responses import Response

from llmkit.errors import (
    BusyError,
    ContextFullError,
    LlmkitError,
    NumericsError,
    OutputError,
    PromptTooLongError,
    RequestTimeoutError,
    UnsupportedError,
)

STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_timeout_error": 408,
    "too_large_error": 413,
    "server_error": 500,
    "not_supported_error": 501,
    "unavailable_error": 503,
}

_OPENAI_CODES = {
    "exceed_context_size_error": "context_length_exceeded",
    "authentication_error": "invalid_api_key",
    "too_large_error": "request_too_large",
}


class ApiError(Exception):
    """An answer that is no result. more: further fields of `error`. headers: of the answer."""

    def __init__(self, type: str, message: str, *, headers: dict[str, str] | None = None, **more: object) -> None:
        super().__init__(message)
        self.type, self.message, self.more = type, message, more
        self.headers = headers or {}

    @property
    def status(self) -> int:
        """Of HTTP."""
        return STATUS_OF_TYPE[self.type]

    def body(self, *, openai: bool = False) -> dict[str, Any]:
        """The JSON object. openai: for the routes whose clients know OpenAI's codes."""
        code: int | str = _OPENAI_CODES.get(self.type, self.status) if openai else self.status
        error: dict[str, Any] = {"code": code, "message": self.message, "type": self.type, **self.more}
        if openai:
            error["param"] = None
        return {"error": error}


def bad_request(message: str) -> ApiError:
    """The client has to write something else."""
    return ApiError("invalid_request_error", message)


def not_supported(message: str) -> ApiError:
    """llama.cpp's server would do it; this one says that it does not."""
    return ApiError("not_supported_error", message)


def too_long(n_prompt_tokens: int, n_ctx: int) -> ApiError:
    """A prompt that leaves no room for a token."""
    message = f"request ({n_prompt_tokens} tokens) exceeds the available context size ({n_ctx} tokens), "
    return ApiError(
        "exceed_context_size_error", message + "try increasing it", n_prompt_tokens=n_prompt_tokens, n_ctx=n_ctx
    )


def busy(message: str, retry_after_s: float = 1.0) -> ApiError:
    """Try again."""
    return ApiError("unavailable_error", message, headers={"Retry-After": str(max(1, math.ceil(retry_after_s)))})


def api_error(error: LlmkitError) -> ApiError:
    """What one of our own errors means to a client: his mistake, unless it is of a kind that cannot be."""
    if isinstance(error, UnsupportedError):
        return not_supported(_sentence(error))
    if isinstance(error, PromptTooLongError):
        return too_long(error.n_prompt, error.n_ctx)
    if isinstance(error, BusyError):
        return busy(_sentence(error), error.retry_after_s)
    if isinstance(error, RequestTimeoutError | ContextFullError):  # no room, because of what is pinned
        return busy(_sentence(error))
    if isinstance(error, NumericsError | OutputError):
        return ApiError("server_error", _sentence(error))
    return bad_request(_sentence(error))


def _sentence(error: LlmkitError) -> str:
    return f"{error.message}. {error.hint}" if error.hint else error.message


def dumps(value: object) -> bytes:
    """JSON as UTF-8. Lone surrogates, which UTF-8 has no bytes for, become `?`; ValueError on NaN and infinity."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def dumps_in_parts(value: object, depth: int = 6) -> bytes:
    """The same bytes, of a value that may be large: json holds Python's lock for all that it is given at once."""
    if depth and isinstance(value, dict):
        fields = (dumps(name) + b":" + dumps_in_parts(field, depth - 1) for name, field in value.items())
        return b"{" + b",".join(fields) + b"}"
    if depth and isinstance(value, list) and value and isinstance(value[0], dict | list):
        return b"[" + b",".join(dumps_in_parts(item, depth - 1) for item in value) + b"]"
    return dumps(value)


def json_response(
    value: object, status: int = 200, headers: dict[str, str] | None = None, *, large: bool = False
) -> Response:
    """An answer that is JSON. large: it is made in a thread, and others shall go on meanwhile."""
    body = dumps_in_parts(value) if large else dumps(value)
    return Response(body, status, headers, media_type="application/json; charset=utf-8")


def error_response(error: ApiError, *, openai: bool = False) -> Response:
    """An answer that is an error."""
    return json_response(error.body(openai=openai), error.status, error.headers)
