"""The OpenAPI document: what the routes take and answer, for programs to read at /openapi.json.

Owns the document's form. The bodies are read by json_body.py, not by FastAPI, which would want a content type.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from llmkit.serving import bodies

_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "type"],
            "properties": {
                "code": {"type": ["integer", "string"]},
                "message": {"type": "string"},
                "type": {"type": "string"},
            },
        }
    },
}
_REASONS = {
    400: "the request is wrong",
    401: "the key is wrong",
    403: "not with this key",
    404: "there is no such thing",
    408: "the body did not arrive in time",
    413: "the body is too large",
    501: "this server does not do that",
    503: "loading, full, or ending",
}


def describe(
    model: type[BaseModel] | None = None, *, required: bool = True, stream: bool = False, text: bool = False
) -> dict[str, Any]:
    """What to give a route: the body that it takes, and how it may answer beside JSON."""
    content: dict[str, Any] = {"application/json": {}}
    if stream:
        content["text/event-stream"] = {}
    if text:
        content["text/plain"] = {}
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    more: dict[str, Any] = {}
    if model is not None:
        schema = {"$ref": _REF.format(model=model.__name__)}
        body = {"required": required, "content": {"application/json": {"schema": schema}}}
        more["openapi_extra"] = {"requestBody": body}
    responses: dict[int | str, Any] = {status: {"description": text, **error} for status, text in _REASONS.items()}
    responses[200] = {"description": "the answer", "content": content}
    return {"responses": responses, **more}


def publish(app: FastAPI) -> None:
    """Makes the document, with the schemas of the bodies."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            whole = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, definitions = models_json_schema([(model, "validation") for model in bodies.ALL], ref_template=_REF)
            schemas = whole.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(definitions.get("$defs", {}))
            schemas["Error"] = _ERROR
            app.openapi_schema = whole
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
