"""`llmkit state save` makes a state of a prompt, `llmkit state load` goes on from one.

Owns the options of the first; those of the second are run's. What a file holds is llmkit/engine/state/save_load.py's.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.files.atomic import check_can_write
from llmkit.params import ContextParams

from . import _options as options
from ._engine import open_engine
from ._state_text import info_json
from .run import EXIT_INTERRUPTED, Request, read_text_or_ids, run_cli

if TYPE_CHECKING:
    from llmkit.engine.state.info import StateInfo

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A state file.", show_default=False)]
MetaOption = Annotated[
    list[str] | None,
    typer.Option("--meta", metavar="KEY=VALUE", help="A text to keep with the state; several: give it again."),
]
CompressOption = Annotated[bool, typer.Option("--compress", help="Smaller (zstd), but copied on loading.")]


# -- save ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SaveRequest:
    """Which prompt to compute and where to keep it."""

    out: Path
    model: str | None = None
    prompt: str | None = None
    file: str | None = None
    ids: str | None = None
    escape: bool = True
    context: ContextParams = field(default_factory=ContextParams)
    overrides: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    logits: bool = False
    compress: bool = False
    as_json: bool = False


def save_cli(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.", show_default=False)],
    model: options.ModelOption = None,
    prompt: options.PromptOption = None,
    file: options.FileOption = None,
    ids: options.IdsOption = None,
    escape: options.EscapeOption = True,
    n_ctx: options.CtxSizeOption = 0,
    n_threads: options.ThreadsOption = 0,
    n_batch: options.BatchOption = 2048,
    n_ubatch: options.UbatchOption = 512,
    type_k: options.TypeKOption = "f16",
    type_v: options.TypeVOption = "f16",
    swa_full: options.SwaFullOption = False,
    overrides: options.OverrideOption = None,
    meta: MetaOption = None,
    logits: Annotated[bool, typer.Option("--logits", help="Keep the logits of the last token too.")] = False,
    compress: CompressOption = False,
    as_json: options.JsonOption = False,
) -> int:
    """Compute a prompt once and save its state: `llmkit state load` and `llmkit run --state` go on from there."""
    context = ContextParams(n_ctx, n_batch, n_ubatch, n_threads, type_k, type_v, swa_full=swa_full)
    return save(
        SaveRequest(
            out, model, prompt, file, ids, escape, context, overrides or [], _metadata(meta or []), logits, compress,
            as_json,
        )
    )  # fmt: skip


def _metadata(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--meta {text!r} is no KEY=VALUE", "For example --meta title=manual.")
        found[key] = value
    return found


def save(request: SaveRequest) -> int:
    """Computes the prompt and writes the file; 0, or 130 after Ctrl-C, when nothing is written."""
    from llmkit.engine.generation.timings import Timings

    check_can_write(request.out)
    prompt = read_text_or_ids(Request(request.model, request.prompt, request.file, request.ids, request.escape))
    timings = Timings()
    opened = open_engine(
        request.model, request.context, timings, needs_text=request.ids is None, overrides=request.overrides
    )
    with opened as engine:
        from llmkit.engine.batch import Segment
        from llmkit.engine.state.save_load import save_state

        from ._interrupt import Interruption

        tokens = prompt if isinstance(prompt, list) else _encoded(engine.tokenizer, prompt)
        if not tokens:
            raise UsageError("the prompt is empty, so there is nothing to save", "Give a text with -p or -f.")
        seq, step = engine.ctx.memory.sequence(0), min(request.context.n_batch, request.context.n_ubatch)
        if len(tokens) > engine.ctx.n_ctx:
            raise UsageError(
                f"the prompt has {len(tokens)} tokens, but the context holds {engine.ctx.n_ctx}", "Give a larger -c."
            )
        row = None
        with report.progress("computing the prompt", len(tokens), " tokens") as bar, Interruption() as interrupted:
            for first in range(0, len(tokens), step):
                if interrupted():
                    report.note("interrupted: nothing was saved")
                    return EXIT_INTERRUPTED
                part = tokens[first : first + step]
                wanted = "last" if request.logits and first + step >= len(tokens) else "none"
                rows = engine.ctx.decode([Segment(seq, part, wanted)])  # type: ignore[arg-type]
                row = rows[0] if len(rows) else None
                bar.update(len(part))
        info = save_state(
            engine.ctx, request.out, seq, metadata=request.metadata, logits=row, compress=request.compress
        )
    _tell_saved(info, request.as_json)
    return 0


def _encoded(tokenizer: Any, text: str) -> list[int]:
    assert tokenizer is not None, "a text prompt needs a tokenizer, which open_engine made sure of"
    ids: list[int] = tokenizer.encode(text)
    return ids


def _tell_saved(info: "StateInfo", as_json: bool) -> None:
    n_tokens = sum(info.n_tokens.values())
    if as_json:
        report.result_json(info_json(info))
    report.note(f"saved {n_tokens} tokens, {info.n_bytes / 1e6:.1f} MB, in {info.path}")
    if info.compressed:
        report.note("it is compressed: loading copies it instead of mapping it")


# -- load ---------------------------------------------------------------------------------------------------------


def _with_options_of(command: Callable[..., int]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Gives a function the options of `run`, with the state as its argument instead of an option."""
    parameters = dict(inspect.signature(command).parameters)
    del parameters["state"]
    argument = inspect.Parameter("path", inspect.Parameter.KEYWORD_ONLY, annotation=FileArgument)

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        function.__signature__ = inspect.Signature([argument, *parameters.values()])  # type: ignore[attr-defined]
        function.__annotations__ = {p.name: p.annotation for p in (argument, *parameters.values())}
        return function

    return decorate


@_with_options_of(run_cli)
def load_cli(**given: Any) -> int:
    """Go on from a saved state: behind the text of -p or -f, or without one with what comes next.

    The options are those of `llmkit run`; `llmkit state load FILE` is `llmkit run --state FILE`.
    """
    path = given.pop("path")
    return run_cli(**given, state=str(path))
