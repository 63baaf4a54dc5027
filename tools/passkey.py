"""`llmkit passkey`: whether a model finds a number that is hidden in a long text.

Owns the options and the order of things. The test itself is llmkit/evaluate/passkey.py, how a sweep looks
_passkey_sweep.py.
"""

import secrets
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.params import MAX_SEED, ContextParams

from . import _options as options
from ._engine import Engine, open_engine
from ._interrupt import Interruption

if TYPE_CHECKING:
    from llmkit.evaluate.passkey import PasskeySizes, PasskeyTask
    from llmkit.models.model import Model
    from llmkit.tokenizer import Tokenizer

    from ._passkey_sweep import Attempt

EXIT_NOT_FOUND = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class PasskeyRequest:
    """What to hide where. n_junk: a number; for a sweep also lists and ranges. width 0: -b's. plot: a file's name."""

    model: str | None = None
    n_junk: str = "250"
    pos: int = -1
    n_keep: int = 32
    n_grp: int = 1
    width: int = 0
    n_predict: int = 16
    seed: int = 1
    sweep: bool = False
    plot: str | None = None
    context: ContextParams = field(default_factory=ContextParams)
    overrides: list[str] = field(default_factory=list)
    as_json: bool = False


def passkey_cli(
    model: options.ModelOption = None,
    n_junk: Annotated[str, typer.Option("--junk", metavar="N", help="Sentences of irrelevant text.")] = "250",
    pos: Annotated[int, typer.Option("--pos", metavar="N", help="Sentences before the key; -1: a random place.")] = -1,
    n_keep: Annotated[
        int, typer.Option("--keep", metavar="N", help="Tokens at the beginning that a context shift keeps.")
    ] = 32,
    n_grp: Annotated[
        int,
        typer.Option("-gan", "--grp-attn-n", metavar="N", help="Self-extend: so many tokens share a position; 1: off."),
    ] = 1,
    width: Annotated[
        int,
        typer.Option(
            "-gaw", "--grp-attn-w", metavar="N", help="Self-extend: the last tokens, ungrouped; 0: as many as -b."
        ),
    ] = 0,
    n_predict: Annotated[int, typer.Option("-n", "--n-predict", metavar="N", help="Tokens of the answer.")] = 16,
    seed: Annotated[
        int, typer.Option("-s", "--seed", metavar="N", help="Chooses key and place; -1: another one each time.")
    ] = 1,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Try places against lengths, up to --junk or as it lists; a table.")
    ] = False,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Draw the sweep into a .png, .svg or .pdf file.")
    ] = None,
    n_ctx: Annotated[
        int, typer.Option("-c", "--ctx-size", metavar="N", help="Cells; 0: the training context x -gan + --keep.")
    ] = 0,
    n_batch: options.BatchOption = 2048,
    n_ubatch: options.UbatchOption = 512,
    n_threads: options.ThreadsOption = 0,
    type_k: options.TypeKOption = "f16",
    type_v: options.TypeVOption = "f16",
    swa_full: options.SwaFullOption = False,
    overrides: options.OverrideOption = None,
    as_json: options.JsonOption = False,
) -> int:
    """Hide a number in irrelevant text and ask the model for it; the answer goes to stdout.

    Exit code 0: found, 2: not found.
    """
    context = ContextParams(n_ctx, n_batch, n_ubatch, n_threads, type_k, type_v, swa_full=swa_full)
    return passkey(
        PasskeyRequest(
            model, n_junk, pos, n_keep, n_grp, width, n_predict, seed, sweep, plot, context, overrides or [], as_json
        )
    )


def passkey(request: PasskeyRequest) -> int:
    """Runs the test, or all of a sweep; the exit code: 0 found (everywhere), 2 not, 130 interrupted."""
    from llmkit.engine.generation.timings import Timings

    sizes, tasks, prompts = _sizes(request), _tasks(request), list[list[int]]()

    def fit(model: "Model", tokenizer: "Tokenizer | None") -> ContextParams:
        assert tokenizer is not None, "open_engine was told that texts are needed"
        prompts.extend(tokenizer.encode(task.text) for task in tasks)
        n_ctx = sizes.n_ctx(model.config.n_ctx_train, request.context.n_ctx) + sizes.n_keep
        # No more cells than the longest prompt needs: a training context may be larger than the machine.
        return replace(request.context, n_ctx=min(n_ctx, max(map(len, prompts)) + sizes.n_predict))

    attempts: list[Attempt] = []
    opened = open_engine(
        request.model, request.context, Timings(), needs_text=True, overrides=request.overrides, fit=fit
    )
    with opened as engine, Interruption() as interruption:
        for task, tokens in zip(tasks, prompts, strict=True):
            attempt = _try(request, sizes, engine, task, tokens, interruption)
            if interruption():
                break
            attempts.append(attempt)
        _show(request, sizes, engine, attempts)
    if interruption():
        return EXIT_INTERRUPTED
    return 0 if all(attempt.found for attempt in attempts) else EXIT_NOT_FOUND


def _sizes(request: PasskeyRequest) -> "PasskeySizes":
    from llmkit.evaluate.passkey import PasskeySizes

    if request.width and request.n_grp == 1:
        raise UsageError("-gaw is the width of self-extend's window, which -gan 1 does not have", "Give -gan too.")
    return PasskeySizes(request.n_keep, request.n_grp, request.width, request.n_predict, request.context.n_batch)


def _tasks(request: PasskeyRequest) -> "list[PasskeyTask]":
    """What is to be tried; UsageError for what cannot be."""
    from llmkit.bench.ranges import parse_numbers
    from llmkit.evaluate.passkey import choose_task

    from ._compare_text import need_plot_library
    from ._passkey_sweep import need_folder_of, sweep_lengths, sweep_tasks

    if not -1 <= request.seed <= MAX_SEED:
        raise UsageError(f"--seed is {request.seed}; from -1 to {MAX_SEED} is expected")
    seed = secrets.randbelow(MAX_SEED) if request.seed == -1 else request.seed
    numbers = parse_numbers("--junk", [request.n_junk])
    if not request.sweep:
        if request.plot is not None:
            raise UsageError("--plot draws a sweep", "Give --sweep too.")
        if len(numbers) != 1:
            raise UsageError(f"--junk {request.n_junk} is more than one length", "With --sweep all of them are tried.")
        return [choose_task(numbers[0], request.pos, seed)]
    if request.pos != -1:
        raise UsageError("--pos is one place, and --sweep tries several", "Give one of them.")
    if request.plot is not None:
        need_plot_library()
        need_folder_of(Path(request.plot))
    return sweep_tasks(sweep_lengths(numbers), seed)


def _try(
    request: PasskeyRequest,
    sizes: "PasskeySizes",
    engine: Engine,
    task: "PasskeyTask",
    tokens: list[int],
    interruption: Interruption,
) -> "Attempt":
    """One prompt and its answer, which streams to stdout unless there will be a table or JSON."""
    from llmkit.evaluate.passkey import PREFIX, SUFFIX, PasskeyRun

    from ._passkey_sweep import Attempt

    assert engine.tokenizer is not None, "open_engine was told that texts are needed"
    began, shown = time.perf_counter(), not request.sweep and not request.as_json
    tell = report.detail if request.sweep else report.note
    n_train = engine.model.config.n_ctx_train
    n_ctx = sizes.n_ctx(n_train, request.context.n_ctx)
    run = PasskeyRun(
        engine.ctx, n_ctx, sizes.chunk(n_train, n_ctx), sizes.n_keep, sizes.n_grp, sizes.n_predict,
        engine.tokenizer.eog_ids, tell, interruption,
    )  # fmt: skip
    tell(
        f"n_len = {len(tokens) + sizes.n_predict}, n_ctx = {n_ctx}, n_kv_req = {n_ctx + sizes.n_keep}, "
        f"n_grp = {sizes.n_grp}, n_batch = {run.n_batch}, n_junk = {task.n_junk}, i_pos = {task.pos}"
    )
    tell(f"prefix tokens: {len(engine.tokenizer.encode(PREFIX))}")
    tell(f"prompt tokens: {len(tokens)}")
    stream, text, n_decoded = engine.tokenizer.stream(), "", 0
    for token in run.answer(tokens):
        if n_decoded == 0:
            place = int(task.pos / task.n_junk * len(tokens))
            tell(f"passkey = {task.passkey}, inserted at position {task.pos} / {task.n_junk} (token pos: ~{place})")
            tell(SUFFIX)
        n_decoded += 1
        text += _shown(stream.push(token), shown)
    text += _shown(stream.finish(), shown)
    if shown:
        report.stream("\n")
    speed = n_decoded / run.seconds if run.seconds else 0.0
    tell(f"decoded {n_decoded} tokens in {run.seconds:.2f} s, speed: {speed:.2f} t/s")
    return Attempt(task, len(tokens), text, run.n_shifts, time.perf_counter() - began)


def _shown(piece: str, shown: bool) -> str:
    """The piece, which goes to stdout if it is shown."""
    if shown:
        report.stream(piece)
    return piece


def _show(request: PasskeyRequest, sizes: "PasskeySizes", engine: Engine, attempts: "list[Attempt]") -> None:
    """What was found: a line for one attempt, a table for several, JSON for either."""
    from ._passkey_sweep import attempt_json, plot_sweep, sweep_table

    if request.as_json:
        n_ctx_train = engine.model.config.n_ctx_train
        head = {"model": engine.model.name, "n_ctx_train": n_ctx_train, "n_grp": sizes.n_grp, "n_keep": sizes.n_keep}
        results = [attempt_json(attempt) for attempt in attempts]
        if request.sweep:
            report.result_json(head | {"attempts": results})
        elif results:
            report.result_json(head | results[0])
    elif request.sweep and attempts:
        report.result_table(*sweep_table(attempts))
    if request.plot is not None and attempts:
        plot_sweep(attempts, engine.model.name, Path(request.plot))
        report.note(f"the plot is in {request.plot}")
    for attempt in attempts if not request.sweep else []:
        report.note("the pass key was found" if attempt.found else f"the pass key {attempt.task.passkey} was not found")
