"""Reading a request's body: JSON of a bounded size within a bounded time, without NaN, and as pydantic models want it.

Owns what is refused before a field is looked at. Knows no route.
"""

import asyncio
import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from llmkit.files.json_text import parse_json as parse_text
from llmkit.serving.errors import ApiError, bad_request

Model = TypeVar("Model", bound=BaseModel)

LARGE = 1 << 16
"""Bytes: what takes longer than a step of the event loop may."""


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Too large: 413; not there in time: 408."""
    parts, n_bytes = [], 0
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                n_bytes += len(part)
                if n_bytes > max_bytes:
                    raise too_large(max_bytes)
                parts.append(part)
    except TimeoutError:
        raise ApiError("request_timeout_error", f"the body did not arrive within {timeout_s:g} s") from None
    except ClientDisconnect:
        raise bad_request("the client has gone") from None
    return b"".join(parts)


def too_large(max_bytes: int) -> ApiError:
    """Also for a body that only announces its size."""
    return ApiError("too_large_error", f"the request is larger than {max_bytes} bytes", headers={"Connection": "close"})


def parse_json(raw: bytes) -> Any:
    """The value of a JSON text. Not UTF-8, not JSON, NaN, infinity, numbers and nests beyond all bounds: 400."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8 at byte {error.start}") from None
    try:
        return parse_text(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise bad_request(f"the body is no JSON: parse error at {place}: {error.msg}") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise bad_request(f"the body holds a number that cannot be used: {error}") from None


def validated(model: type[Model], value: Any) -> Model:
    """The body as a model; 400 with the first field that is wrong."""
    if not isinstance(value, dict):
        raise bad_request(f"the body must be a JSON object, but is {json_type(value)}")
    try:
        return model.model_validate({name: field for name, field in value.items() if field is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"] if not _is_a_type(part))
        raise bad_request(f"Field '{field}': {first['msg']}" if field else first["msg"]) from None


async def read_model(request: Request, model: type[Model], max_bytes: int, timeout_s: float) -> Model:
    """The body as a model. Whatever the content type says, it is JSON. A large one is read in a thread."""
    raw = await read_body(request, max_bytes, timeout_s)
    if len(raw) < LARGE:
        return validated(model, parse_json(raw))
    return await asyncio.get_running_loop().run_in_executor(None, lambda: validated(model, parse_json(raw)))


def json_type(value: object) -> str:
    """What JSON calls a value."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), type(value).__name__)


def _is_a_type(part: object) -> bool:
    """Pydantic names the variant of a union as a part of the place."""
    return isinstance(part, str) and ("[" in part or part in ("str", "int", "bool", "float", "dict", "list"))
