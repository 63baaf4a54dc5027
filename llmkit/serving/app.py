"""The HTTP application: which path is answered by what.

Owns the routes and the order of things in each: read the body, prepare in a thread, hand over, answer. What bodies mean
and what answers look like is told by the modules it calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llmkit import __version__
from llmkit.engine.scheduling.requests import CompletionRequest
from llmkit.errors import LlmkitError
from llmkit.serving import bodies, cached, chat, prompts, views
from llmkit.serving.calls import Call, ClientGone, run
from llmkit.serving.completion import (
    Look,
    checked,
    completion_request,
    grammar_of,
    look_of,
    refuse_what_is_not_there,
)
from llmkit.serving.errors import (
    ApiError,
    api_error,
    bad_request,
    busy,
    error_response,
    json_response,
    not_supported,
)
from llmkit.serving.json_body import Model, parse_json, read_body, read_model, validated
from llmkit.serving.metrics import Metrics
from llmkit.serving.middleware import Around, context_of, is_openai
from llmkit.serving.native import NativeCall
from llmkit.serving.openai import OpenAICall
from llmkit.serving.openapi import describe, publish
from llmkit.serving.results import note
from llmkit.serving.served import Served, ServerState
from llmkit.serving.settings import ServeSettings
from llmkit.serving.slots import Slots, slot_json
from llmkit.serving.sse import EventStream

T = TypeVar("T")

NOT_THERE = {
    "embeddings": ("/embedding", "/embeddings", "/v1/embeddings"),
    "reranking": ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
    "the Responses API": ("/v1/responses",),
    "the Anthropic API": ("/v1/messages", "/v1/messages/count_tokens"),
    "audio": ("/v1/audio/transcriptions",),
    "controlling a running chat": ("/v1/chat/completions/control",),
    "LoRA adapters": ("/lora-adapters",),
    "tools": ("/tools",),
}
"""Routes of llama.cpp's server that answer 501 by name."""


class Routes:
    """What the routes do; one object a server."""

    def __init__(self, state: ServerState) -> None:
        self.state, self.settings = state, state.settings
        self.slots = Slots(state.settings.slot_save_path)
        self.metrics = Metrics(state)

    def served(self) -> Served:
        """The model, or 503 while it loads."""
        if self.state.served is None:
            raise ApiError("unavailable_error", "Loading model", headers={"Retry-After": "1"})
        return self.state.served

    async def body(self, request: Request, model: type[Model]) -> Model:
        """The request's body; a server that loads reads none."""
        self.served()
        return await read_model(request, model, self.settings.max_body_bytes, self.settings.body_timeout_s)

    # -- completing ---------------------------------------------------------------------------------------------------

    async def native(self, request: Request, body: bodies.NativeCompletion | bodies.Infill) -> Response:
        """An answer in llama.cpp's form."""
        served, context = self.served(), context_of(request.scope)
        requests, look = await in_thread(partial(_native_requests, served, self.settings, body, context.namespace))
        form = NativeCall(served, requests, look, body.grammar or "", context.notes)
        call = await in_thread(partial(Call, served.engine, requests))
        if look.stream:
            return EventStream(form.stream(call), self.settings.timeout_s, call.close)
        answers = await run(call, request.receive)
        note(context.notes, answers)

        def result() -> Response:
            results = [form.result(answer) for answer in answers]
            return json_response(results[0] if len(results) == 1 else results, large=True)

        return await in_thread(result)

    async def openai(self, request: Request, body: bodies.OpenAICompletion | bodies.ChatCompletion) -> Response:
        """An answer in OpenAI's form."""
        served, context = self.served(), context_of(request.scope)
        prepare: Callable[..., Prepared] = _chat_requests if isinstance(body, bodies.ChatCompletion) else _text_requests
        requests, look = await in_thread(partial(prepare, served, self.settings, body, context.namespace))
        form = OpenAICall(served, requests, look, isinstance(body, bodies.ChatCompletion), context.notes)
        call = await in_thread(partial(Call, served.engine, requests))
        if look.stream:
            return EventStream(form.stream(call), self.settings.timeout_s, call.close)
        answers = await run(call, request.receive)
        note(context.notes, answers)
        return await in_thread(lambda: json_response(form.result(answers), large=True))

    async def completion(self, request: Request) -> Response:
        """POST /completion."""
        return await self.native(request, await self.body(request, bodies.NativeCompletion))

    async def infill(self, request: Request) -> Response:
        """POST /infill."""
        return await self.native(request, await self.body(request, bodies.Infill))

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self.openai(request, await self.body(request, bodies.OpenAICompletion))

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self.openai(request, await self.body(request, bodies.ChatCompletion))

    # -- texts --------------------------------------------------------------------------------------------------------

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        body = await self.body(request, bodies.Tokenize)
        return json_response(await in_thread(partial(views.tokenize_json, self.served(), body)))

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        body = await self.body(request, bodies.Detokenize)
        return json_response(await in_thread(partial(views.detokenize_json, self.served(), body)))

    async def apply_template(self, request: Request) -> Response:
        """POST /apply-template: a conversation's prompt."""
        body = await self.body(request, bodies.ChatFields)
        prompt = await in_thread(partial(chat.read_chat, self.served(), self.settings, body))
        return json_response({"prompt": prompt.text})

    async def input_tokens(self, request: Request) -> Response:
        """POST /v1/chat/completions/input_tokens: how many tokens a conversation has."""
        body, served = await self.body(request, bodies.ChatFields), self.served()

        def count() -> int:
            return len(chat.chat_ids(served, chat.read_chat(served, self.settings, body))[0])

        return json_response({"input_tokens": await in_thread(count), "object": "response.input_tokens"})

    # -- looking ------------------------------------------------------------------------------------------------------

    async def health(self) -> Response:
        """GET /health."""
        self.served()
        return json_response({"status": "ok"})

    async def models(self) -> Response:
        """GET /v1/models."""
        return json_response(views.models_json(self.served(), self.settings))

    async def props(self) -> Response:
        """GET /props."""
        return json_response(views.props_json(self.served(), self.settings))

    async def change_props(self, request: Request) -> Response:
        """POST /props."""
        if not self.settings.props:
            raise not_supported("This server does not support changing global properties. Start it with `--props`")
        raw = await read_body(request, self.settings.max_body_bytes, self.settings.body_timeout_s)
        views.change_props(self.served(), validated(bodies.AnyObject, parse_json(raw)).model_extra or {})
        return json_response({"success": True})

    async def list_slots(self, fail_on_no_slot: str = "") -> Response:
        """GET /slots."""
        if not self.settings.slots:
            raise not_supported("This server does not support slots endpoint. Start it with `--slots`")
        slots = self.served().engine.slots()
        if fail_on_no_slot not in ("", "0", "false") and all(slot.is_processing for slot in slots):
            raise busy("no slot available")
        return json_response([slot_json(slot) for slot in slots])

    async def change_slot(self, request: Request, id: str, action: str = "") -> Response:
        """POST /slots/{id}."""
        served, namespace = self.served(), context_of(request.scope).namespace
        raw = await read_body(request, self.settings.max_body_bytes, self.settings.body_timeout_s)
        body = validated(bodies.SlotFile, parse_json(raw) if raw.strip() else {})
        return json_response(await self.slots.act(served, id, action, body, namespace))

    async def read_metrics(self, format: str = "") -> Response:
        """GET /metrics; format=json for JSON."""
        if not self.settings.metrics:
            raise not_supported("This server does not support metrics endpoint. Start it with `--metrics`")
        if format == "json":
            return json_response(self.metrics.json())
        if format not in ("", "prometheus", "text"):
            raise bad_request("format can be json or prometheus")
        headers = {"Process-Start-Time-Unix": str(int(self.state.started))}
        return Response(self.metrics.text(), 200, headers, media_type="text/plain; version=0.0.4")

    # -- the cache ----------------------------------------------------------------------------------------------------

    async def list_cache(self, request: Request) -> Response:
        """GET /cache."""
        return json_response(await cached.list_prefixes(self.served(), context_of(request.scope).namespace))

    async def drop_cached(self, request: Request, id: str) -> Response:
        """DELETE /cache/{id}."""
        if not (id.isascii() and id.isdecimal() and len(id) < 19):
            raise ApiError("not_found_error", f"there is no cached prefix {id[:40]}")
        return json_response(await cached.drop_prefix(self.served(), context_of(request.scope).namespace, int(id)))

    async def pin_cached(self, request: Request) -> Response:
        """POST /cache/pin."""
        body = await self.body(request, bodies.Pin)
        namespace = context_of(request.scope).namespace
        return json_response(await cached.pin_prefix(self.served(), namespace, body.id, body.pinned))

    # -- what is not there --------------------------------------------------------------------------------------------

    async def page(self) -> Response:
        """GET /: the web page, unless it is not wanted at all."""
        if not self.settings.webui:
            raise ApiError("not_found_error", "File Not Found")
        raise not_supported("This server has no web page yet; its routes are listed at /openapi.json")


Prepared = tuple[list[CompletionRequest], Look]


def build_app(state: ServerState) -> Around:
    """The application of a server."""
    app = FastAPI(
        title="llmkit", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False,
        openapi_url=f"{state.settings.api_prefix}/openapi.json",
    )  # fmt: skip
    add_routes(app, Routes(state), state.settings.api_prefix)
    for kind, handle in _HANDLERS.items():
        app.add_exception_handler(kind, handle)
    app.state.llmkit = state
    return Around(app, state)


def add_routes(app: FastAPI, routes: Routes, prefix: str) -> None:
    """Names the paths."""

    def add(method: str, paths: tuple[str, ...], endpoint: Callable[..., Any], **more: Any) -> None:
        for i, path in enumerate(paths):
            app.add_api_route(
                prefix + path, endpoint, methods=[method], include_in_schema=i == 0, response_model=None, **more
            )

    post, get = partial(add, "POST"), partial(add, "GET")
    post(("/completion", "/completions"), routes.completion, **describe(bodies.NativeCompletion, stream=True))
    post(("/infill",), routes.infill, **describe(bodies.Infill, stream=True))
    post(("/v1/completions",), routes.completions, **describe(bodies.OpenAICompletion, stream=True))
    chats = ("/v1/chat/completions", "/chat/completions")
    post(chats, routes.chat_completions, **describe(bodies.ChatCompletion, stream=True))
    post(("/v1/chat/completions/input_tokens",), routes.input_tokens, **describe(bodies.ChatFields))
    post(("/tokenize",), routes.tokenize, **describe(bodies.Tokenize))
    post(("/detokenize",), routes.detokenize, **describe(bodies.Detokenize))
    post(("/apply-template",), routes.apply_template, **describe(bodies.ChatFields))
    get(("/health", "/v1/health"), routes.health, **describe())
    get(("/v1/models", "/models"), routes.models, **describe())
    get(("/props",), routes.props, **describe())
    post(("/props",), routes.change_props, **describe(bodies.AnyObject))
    get(("/slots",), routes.list_slots, **describe())
    post(("/slots/{id}",), routes.change_slot, **describe(bodies.SlotFile, required=False))
    get(("/metrics",), routes.read_metrics, **describe(text=True))
    get(("/cache",), routes.list_cache, **describe())
    add("DELETE", ("/cache/{id}",), routes.drop_cached, **describe())
    post(("/cache/pin",), routes.pin_cached, **describe(bodies.Pin))
    get(("/",), routes.page, **describe())
    for what, paths in NOT_THERE.items():
        for path in paths:
            app.add_api_route(
                prefix + path, _refusing(what), methods=["GET", "POST"], include_in_schema=False, response_model=None
            )
    publish(app)


def _refusing(what: str) -> Callable[[], Awaitable[Response]]:
    async def refuse() -> Response:
        raise not_supported(f"This server does not support {what} yet")

    return refuse


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, openai=_is_openai(request))


async def _on_llmkit_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LlmkitError)
    return error_response(api_error(error), openai=_is_openai(request))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """There is no such route; as in llama.cpp's server, a wrong method is one too."""
    return error_response(ApiError("not_found_error", "File Not Found"), openai=_is_openai(request))


async def _on_bad_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return error_response(bad_request(f"Field '{first['loc'][-1]}': {first['msg']}"), openai=_is_openai(request))


async def _on_gone(request: Request, error: Exception) -> Response:
    """Nobody reads it; it is for the log. 499 is nginx's number."""
    context_of(request.scope).notes["client"] = "gone"
    return Response(status_code=499)


async def _on_bug(request: Request, error: Exception) -> Response:
    """Whatever else is raised is raised on to middleware.py, which logs it."""
    message = f"internal error; the server's log tells more under {context_of(request.scope).id}"
    return error_response(ApiError("server_error", message), openai=_is_openai(request))


def _is_openai(request: Request) -> bool:
    return is_openai(request.url.path.removeprefix(request.app.state.llmkit.settings.api_prefix))


_HANDLERS: dict[int | type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    ApiError: _on_api_error,
    LlmkitError: _on_llmkit_error,
    HTTPException: _on_http_error,
    RequestValidationError: _on_bad_parameter,
    ClientGone: _on_gone,
    Exception: _on_bug,
}


async def in_thread(function: Callable[[], T]) -> T:
    """Away from the event loop, which answers others meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(None, function)


def _native_requests(
    served: Served, settings: ServeSettings, body: bodies.NativeCompletion | bodies.Infill, namespace: str
) -> Prepared:
    refuse_what_is_not_there(body)
    n_probs = body.n_probs or None
    if isinstance(body, bodies.Infill):
        prefix = body.input_prefix + (body.prompt or "")
        ids = [prompts.infill_ids(served, prefix, body.input_suffix, body.input_extra or [])]
    else:
        ids = prompts.read_prompts(served, body.prompt)
    make = partial(completion_request, served, settings, body, namespace=namespace, n_probs=n_probs)
    return checked(served, [make(prompt) for prompt in ids]), look_of(body, settings, n_probs)


def _text_requests(served: Served, settings: ServeSettings, body: bodies.OpenAICompletion, namespace: str) -> Prepared:
    refuse_what_is_not_there(body)
    if body.suffix:
        raise not_supported("This server does not support the field 'suffix'; POST /infill fills gaps")
    if (body.best_of or 1) > 1:
        raise not_supported("This server does not support the field 'best_of'")
    n_probs = body.n_probs
    ids = prompts.read_prompts(served, body.prompt)
    if body.echo and (n_probs is not None or len(ids) > 1):
        raise not_supported("This server supports 'echo' for one prompt and without 'logprobs' only")
    look = look_of(body, settings, n_probs)
    if body.echo:
        look = replace(look, echo=served.tokenizer.decode(ids[0], special=True))
    make = partial(completion_request, served, settings, body, namespace=namespace, n_probs=n_probs)
    return checked(served, [make(prompt) for prompt in ids]), look


def _chat_requests(served: Served, settings: ServeSettings, body: bodies.ChatCompletion, namespace: str) -> Prepared:
    refuse_what_is_not_there(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("invalid_request_error", "top_logprobs requires logprobs to be set to true")
    n_probs = (20 if body.top_logprobs is None else body.top_logprobs) if body.logprobs else None
    grammar = chat.format_grammar(served, body) or grammar_of(served, body)
    prompt = chat.read_chat(served, settings, body)
    ids, points = chat.chat_ids(served, prompt)
    look = replace(look_of(body, settings, n_probs), prefill=prompt.prefill)
    request = completion_request(
        served, settings, body, ids, namespace=namespace, n_probs=n_probs, grammar=grammar, points=points
    )
    return checked(served, [request]), look
