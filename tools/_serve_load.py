"""Opening what `llmkit serve` serves: the model, its template, the engine's thread, and what is common to all keys.

Owns the order. It runs while the server listens already and answers that it is loading.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmkit import report
from llmkit.engine.generation.timings import Timings
from llmkit.engine.scheduling.requests import PUBLIC, CompletionRequest, Event, Failed, Finished
from llmkit.errors import UsageError
from llmkit.files.json_text import parse_json
from llmkit.params import GenerateParams
from llmkit.serving.chat import read_messages
from llmkit.serving.errors import ApiError
from llmkit.serving.served import Served
from llmkit.serving.settings import ServeSettings

from ._engine import Engine, open_engine

if TYPE_CHECKING:
    from llmkit.engine.scheduling.engine_thread import EngineThread
    from llmkit.tokenizer.chat_template import ChatTemplate

    from .serve import ServeRequest

LIKE = {"<|im_start|>": "chatml"}
"""What stands in a template that a built-in one is like."""


def load(
    request: ServeRequest, settings: ServeSettings, stack: ExitStack, deliver: Callable[[Callable[[], None]], object]
) -> Served:
    """What the server answers with; `stack` ends it. deliver: gives what happened to the server's own thread."""
    timings = Timings()
    opened = stack.enter_context(
        open_engine(request.model, request.context, timings, needs_text=True, overrides=request.overrides)
    )
    from llmkit.engine.scheduling.engine_thread import EngineThread
    from llmkit.sampling.grammar import GrammarCompiler

    assert opened.tokenizer is not None, "open_engine made sure of it"
    opened.tokenizer.prepare()
    request.sampling.check_ids(opened.model.config.n_vocab)
    opened.ctx.warm_up()
    params, n_ctx = request.engine, opened.ctx.n_ctx
    if request.per_slot:
        params = replace(params, n_ctx_slot=n_ctx // params.n_slots)
    engine = EngineThread(opened.ctx, opened.tokenizer, params, hand_over=deliver)
    stack.callback(engine.close)
    template = _template(opened, request)
    report.detail(f"chat template: {template.name}")
    for path in request.public_prefixes:
        _preload(path, opened, template, engine)
    return Served(
        model=opened.model,
        tokenizer=opened.tokenizer,
        ctx=opened.ctx,
        engine=engine,
        template=template,
        grammars=GrammarCompiler(opened.tokenizer, opened.model.config.n_vocab),
        n_slots=params.n_slots,
        n_ctx=min(params.n_ctx_slot or n_ctx, n_ctx),
        name=settings.aliases[0] if settings.aliases else opened.model.gguf.path.name,
        sampling=request.sampling,
        stops=request.stops,
    )


def _template(opened: Engine, request: ServeRequest) -> ChatTemplate:
    """The one asked for, or the model's own. Without Jinja a built-in one, since another is a program out of a file."""
    from llmkit.tokenizer.chat_template import load_chat_template
    from llmkit.tokenizer.chat_template_names import BUILT_IN

    gguf, name = opened.model.gguf, request.template
    if not request.jinja:
        if request.template_file is not None or (name is not None and name not in BUILT_IN):
            raise UsageError(
                "--no-jinja takes built-in templates only", f"--chat-template can be {', '.join(sorted(BUILT_IN))}."
            )
        own = gguf.str("tokenizer.chat_template", None) or ""
        name = name or next((name for mark, name in LIKE.items() if mark in own and name in BUILT_IN), "chatml")
    return load_chat_template(gguf, name_or_text=name, file=request.template_file)


def _preload(path: str, opened: Engine, template: ChatTemplate, engine: EngineThread) -> None:
    """Computes a prefix for all keys, and keeps it."""
    ids = _prefix_ids(path, opened, template)
    done: Future[int] = Future()

    def on_event(event: Event) -> None:
        if isinstance(event, Failed):
            done.set_exception(event.error)
        elif isinstance(event, Finished):
            done.set_result(event.n_past)

    engine.submit(CompletionRequest(ids, GenerateParams(n_predict=0), namespace=PUBLIC), on_event)
    n = done.result()

    def pin(ctx: Any, tree: Any) -> None:
        """The entry is found by putting it there once more."""
        seq = ctx.new_sequence()
        try:
            tree.attach(tree.match(ids, [PUBLIC]), seq)
            entry = tree.insert(seq, PUBLIC)
            if entry == 0:
                raise UsageError(f"--public-prefix {path} does not fit", "Give a larger -c or --cache-ram.")
            tree.pin(entry)
        finally:
            ctx.free_sequence(seq)

    engine.call(pin).result()
    report.note(f"public prefix {path}: {n} tokens")


def _prefix_ids(path: str, opened: Engine, template: ChatTemplate) -> list[int]:
    """A text's ids; of a .json file with messages those of the beginning of such a conversation."""
    assert opened.tokenizer is not None
    try:
        text = Path(path).read_text(encoding="utf-8")
        if path.endswith(".json"):
            value = parse_json(text)
            messages = read_messages(value.get("messages") if isinstance(value, dict) else value)
            text = template.render(messages, add_generation_prompt=False)
    except (OSError, ValueError, RecursionError, ApiError) as error:
        raise UsageError(f"--public-prefix {path} cannot be used: {error}") from None
    ids = opened.tokenizer.encode(text)
    if not ids:
        raise UsageError(f"--public-prefix {path} holds no token")
    return ids
