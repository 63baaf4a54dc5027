"""`llmkit perplexity`: how well a model predicts a text, how far it is from another model, how it does on tasks.

Owns the options and the order of things. The measures are llmkit.evaluate's; names and formats are llama.cpp's.
"""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.params import ContextParams

from . import _evaluate_options as options
from ._engine import Engine, open_engine
from ._interrupt import Interruption
from ._options import (
    JsonOption,
    ModelOption,
    OverrideOption,
    ThreadsOption,
    TypeKOption,
    TypeVOption,
    UbatchOption,
)
from ._running import Running
from ._text import read_source

if TYPE_CHECKING:
    from llmkit.evaluate.perplexity import Estimate
    from llmkit.evaluate.windows import Windows
    from llmkit.tokenizer import Tokenizer

EXIT_INTERRUPTED = 130
TASK_SEQUENCES = 4
"""The context for tasks holds so many times -c."""

N_TASKS = {"hellaswag": 400, "winogrande": 0, "multiple-choice": 0}
"""The kinds of tasks, and how many are taken by default; 0 means all."""


@dataclass(frozen=True)
class PerplexityRequest:
    """What to measure. n_ctx None: 512, or what the base file has. base: the file of log-probabilities, written unless
    kl_divergence. task: a key of N_TASKS."""

    model: str | None = None
    file: str | None = None
    n_ctx: int | None = None
    n_chunks: int = -1
    stride: int = 0
    output_type: int = 0
    base: str | None = None
    kl_divergence: bool = False
    task: str | None = None
    n_tasks: int = 0
    context: ContextParams = field(default_factory=ContextParams)
    overrides: list[str] = field(default_factory=list)
    as_json: bool = False


def _task_option(name: str, what: str) -> Any:
    return typer.Option(f"--{name}", help=f"Score the {what} tasks of -f instead.")


def _tasks_option(name: str) -> Any:
    every = "; 0: all" if N_TASKS[name] == 0 else ""
    return typer.Option(f"--{name}-tasks", metavar="N", help=f"Take N random ones of them{every}.")


def perplexity_cli(
    model: ModelOption = None,
    file: options.TextOption = None,
    n_ctx: options.ChunkSizeOption = None,
    n_chunks: options.ChunksOption = -1,
    n_batch: options.BatchOption = 2048,
    n_ubatch: UbatchOption = 512,
    n_threads: ThreadsOption = 0,
    type_k: TypeKOption = "f16",
    type_v: TypeVOption = "f16",
    stride: Annotated[
        int, typer.Option("--ppl-stride", metavar="N", help="Score N tokens of windows that move on by N; 0: chunks.")
    ] = 0,
    output_type: Annotated[
        int, typer.Option("--ppl-output-type", metavar="0|1", help="1: a line a chunk, with the mean of -log p.")
    ] = 0,
    base: Annotated[
        str | None,
        typer.Option(
            "--save-all-logits", "--kl-divergence-base", metavar="FILE", help="Write the log-probabilities to FILE."
        ),
    ] = None,
    kl_divergence: Annotated[
        bool, typer.Option("--kl-divergence", help="Compare with the log-probabilities in that FILE instead.")
    ] = False,
    hellaswag: Annotated[bool, _task_option("hellaswag", "HellaSwag")] = False,
    hellaswag_tasks: Annotated[int, _tasks_option("hellaswag")] = N_TASKS["hellaswag"],
    winogrande: Annotated[bool, _task_option("winogrande", "WinoGrande")] = False,
    winogrande_tasks: Annotated[int, _tasks_option("winogrande")] = N_TASKS["winogrande"],
    multiple_choice: Annotated[bool, _task_option("multiple-choice", "multiple-choice")] = False,
    multiple_choice_tasks: Annotated[int, _tasks_option("multiple-choice")] = N_TASKS["multiple-choice"],
    overrides: OverrideOption = None,
    as_json: JsonOption = False,
) -> int:
    """Measure a model's perplexity over a text; or its KL divergence from another one; or its score on tasks.

    The text comes from -f or through a pipe. The result goes to stdout, progress to stderr.
    """
    asked = {
        "hellaswag": (hellaswag, hellaswag_tasks),
        "winogrande": (winogrande, winogrande_tasks),
        "multiple-choice": (multiple_choice, multiple_choice_tasks),
    }
    chosen = [name for name, (wanted, _) in asked.items() if wanted]
    if len(chosen) + kl_divergence > 1:
        names = [f"--{name}" for name in [*chosen, *["kl-divergence"] * kl_divergence]]
        raise UsageError(f"{' and '.join(names)} exclude each other", "Give one of them.")
    task = chosen[0] if chosen else None
    context = ContextParams(0, n_batch, n_ubatch, n_threads, type_k, type_v, swa_full=True)  # tasks cut sequences back
    return perplexity(
        PerplexityRequest(
            model, file, n_ctx, n_chunks, stride, output_type, base, kl_divergence, task,
            asked[task][1] if task else 0, context, overrides or [], as_json,
        )
    )  # fmt: skip


def perplexity(request: PerplexityRequest) -> int:
    """Measures and shows; returns the exit code: 0, or 130 if interrupted, with what was done until then shown."""
    _check(request)
    if request.kl_divergence:
        return _measure_divergence(request)
    if request.task is not None:
        return _score_tasks(request, request.task)
    return _measure_text(request)


def _check(request: PerplexityRequest) -> None:
    """UsageError for what cannot be asked for together, before anything is read."""
    from llmkit.evaluate.windows import check_sizes

    if request.output_type not in (0, 1):
        raise UsageError(f"--ppl-output-type is {request.output_type}; 0 or 1 is expected")
    if request.kl_divergence and request.base is None:
        raise UsageError("--kl-divergence needs --kl-divergence-base FILE", "Write the file first, without it.")
    if request.stride and (request.base is not None or request.task):
        raise UsageError("--ppl-stride is for perplexity alone", "Leave it out with a base file and with tasks.")
    if request.task and request.base is not None:
        raise UsageError(f"--{request.task} writes no log-probabilities", "Leave out --save-all-logits.")
    if request.n_tasks < 0:
        raise UsageError(f"--{request.task}-tasks is {request.n_tasks}; at least 0 is expected", "0 takes all.")
    check_sizes(options.N_CTX if request.n_ctx is None else request.n_ctx, request.n_chunks, request.stride)


def _open(request: PerplexityRequest, params: ContextParams, needs_text: bool = True) -> AbstractContextManager[Engine]:
    from llmkit.engine.generation.timings import Timings

    return open_engine(request.model, params, Timings(), needs_text=needs_text, overrides=request.overrides)


def _tokenizer(engine: Engine) -> "Tokenizer":
    assert engine.tokenizer is not None, "the engine was opened for texts"
    return engine.tokenizer


def _ready(engine: Engine, length: int) -> int | None:
    """Readies the kernels and says what should be known first; the token that begins a window, if there is one."""
    n_train = engine.model.config.n_ctx_train
    if length > n_train:
        report.warning(f"the model was trained on {n_train} tokens, and the chunks have {length}")
    engine.ctx.warm_up()
    tokenizer = engine.tokenizer
    return tokenizer.bos_id if tokenizer is not None and tokenizer.add_bos else None


def _told(windows: "Windows", n_seq: int, request: PerplexityRequest) -> None:
    report.note(
        f"{windows.n} chunks of {windows.length} tokens, {windows.n_scored} of them scored,"
        f" {min(n_seq, windows.n)} chunks together, in batches of {request.context.n_batch}"
    )


# -- perplexity of a text ---------------------------------------------------------------------------------------------


def _measure_text(request: PerplexityRequest) -> int:
    from llmkit.evaluate import windows as cut
    from llmkit.evaluate.text import decode_text, encode_text

    text = decode_text(*read_source(request.file))
    n_ctx = options.N_CTX if request.n_ctx is None else request.n_ctx
    length = cut.strided_length(n_ctx, request.stride) if request.stride else n_ctx
    n_seq = options.n_together(request.context.n_batch, length)
    with _open(request, options.holding(request.context, n_seq, length)) as engine:
        tokens = encode_text(_tokenizer(engine), text)
        bos = _ready(engine, length)
        if request.stride:
            windows = cut.strided(tokens, n_ctx, request.stride, request.n_chunks, bos)
        else:
            windows = cut.chunks(tokens, n_ctx, request.n_chunks, bos)
        return _run_text(request, engine, windows, n_seq)


def _run_text(request: PerplexityRequest, engine: Engine, windows: "Windows", n_seq: int) -> int:
    from llmkit.evaluate import perplexity as measure
    from llmkit.evaluate.logits_file import LogitsWriter

    _told(windows, n_seq, request)
    history: list[float] = []
    estimate = measure.Estimate()
    with ExitStack() as stack:
        save = None
        if request.base is not None:
            save = stack.enter_context(LogitsWriter(Path(request.base), windows, engine.model.config.n_vocab))
        stop = stack.enter_context(Interruption())
        running = Running("perplexity", "chunks", windows.n, n_seq, request.as_json)
        with running:
            for estimate in measure.perplexity(engine.ctx, windows, n_seq, save=save, stop=stop):
                running.step(_chunk(request, windows, running.n_done, estimate))
                history.append(estimate.ppl)
        seconds = running.seconds
        if save is not None and running.n_done == windows.n:
            save.finish()
    _show_text(request, engine, windows, history, estimate, seconds)
    return _exit_code(running)


def _chunk(request: PerplexityRequest, windows: "Windows", i: int, estimate: "Estimate") -> str:
    from ._perplexity_text import chunk_line, chunk_text

    if request.output_type == 0:
        return chunk_text(i + 1, estimate)
    return chunk_line(i * windows.step, estimate, strided=request.stride > 0)


def _show_text(
    request: PerplexityRequest,
    engine: Engine,
    windows: "Windows",
    history: list[float],
    estimate: "Estimate",
    seconds: float,
) -> None:
    from ._perplexity_text import estimate_json, final_line

    numbers = _run_json(engine, windows, len(history), seconds)
    if request.as_json:
        report.result_json(numbers | estimate_json(estimate) | {"chunks": history})
    elif history:
        report.result(("\n" if request.output_type == 0 else "") + final_line(estimate, len(history), windows.n))
    if request.base is not None:
        whole = len(history) == windows.n
        report.note(f"the log-probabilities are in {request.base}" if whole else "no log-probabilities were written")
    report.note(f"{numbers['n_tokens']} tokens in {seconds:.2f} s: {numbers['tokens_per_second']:.1f} t/s")


def _run_json(engine: Engine, windows: "Windows", n_done: int, seconds: float) -> dict[str, Any]:
    """What is said about any run over windows."""
    n_tokens = n_done * windows.length
    return {
        "model": engine.model.name,
        "n_ctx": windows.length,
        "n_chunks": windows.n,
        "n_chunks_done": n_done,
        "stop_reason": "done" if n_done == windows.n else "interrupted",
        "n_tokens": n_tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(n_tokens / seconds, 2) if seconds > 0 else 0.0,
    }


def _exit_code(running: Running) -> int:
    if running.n_done == running.total:
        return 0
    report.note(f"interrupted after {running.n_done} of {running.total}")
    return EXIT_INTERRUPTED


# -- KL divergence ----------------------------------------------------------------------------------------------------


def _measure_divergence(request: PerplexityRequest) -> int:
    from llmkit.evaluate.logits_file import LogitsReader
    from llmkit.evaluate.text import decode_text, encode_text

    assert request.base is not None, "checked before"
    with LogitsReader(Path(request.base)) as base:
        text = None if request.file is None else decode_text(*read_source(request.file))
        n_seq = options.n_together(request.context.n_batch, base.n_ctx)
        params = options.holding(request.context, n_seq, base.n_ctx)
        with _open(request, params, needs_text=text is not None) as engine:
            from llmkit.evaluate.kl_divergence import base_windows

            tokens = None if text is None else encode_text(_tokenizer(engine), text)
            windows = base_windows(
                base, engine.model.config.n_vocab, _ready(engine, base.n_ctx), n_ctx=request.n_ctx,
                n_chunks=request.n_chunks, text=tokens,
            )  # fmt: skip
            return _run_divergence(request, engine, base, windows, n_seq)


def _run_divergence(request: PerplexityRequest, engine: Engine, base: Any, windows: "Windows", n_seq: int) -> int:
    from llmkit.evaluate import kl_divergence as measure

    from ._perplexity_text import KL_HEADER, kl_blocks, kl_json, kl_row

    _told(windows, n_seq, request)
    statistics = measure.KlStatistics()
    history: list[float] = []
    with Interruption() as stop, Running("KL divergence", "chunks", windows.n, n_seq, request.as_json) as running:
        for statistics in measure.kl_divergence(engine.ctx, base, windows, n_seq, stop):
            running.step(("" if history else KL_HEADER) + kl_row(running.n_done + 1, statistics))
            history.append(statistics.kld.mean)
        seconds = running.seconds
    numbers = _run_json(engine, windows, len(history), seconds)
    if request.as_json:
        report.result_json(numbers | (kl_json(statistics) if history else {}) | {"chunks": history})
    elif history:
        report.result("\n" + kl_blocks(statistics), end="")
    report.note(f"{numbers['n_tokens']} tokens in {seconds:.2f} s: {numbers['tokens_per_second']:.1f} t/s")
    return _exit_code(running)


# -- tasks ------------------------------------------------------------------------------------------------------------


def _score_tasks(request: PerplexityRequest, task: str) -> int:
    from ._perplexity_tasks import read_tasks

    kind = read_tasks(task, request.file, request.n_tasks)
    n_ctx = options.N_CTX if request.n_ctx is None else request.n_ctx
    score = None
    with _open(request, replace(request.context, n_ctx=TASK_SEQUENCES * n_ctx)) as engine:
        _ready(engine, n_ctx)
        with Interruption() as stop, Running(task, "tasks", kind.n_tasks, 32, request.as_json) as running:
            for score in kind.scores(engine, stop):
                running.step(("" if running.n_done else kind.header) + kind.line(score))
            seconds = running.seconds
    if request.as_json:
        whole = running.n_done == running.total
        numbers: dict[str, Any] = {
            "model": engine.model.name,
            "task": task,
            "stop_reason": "done" if whole else "interrupted",
        }
        numbers |= kind.to_json(score) if score is not None else {"n_tasks": 0}
        report.result_json(numbers | {"seconds": round(seconds, 3)})
    elif score is not None:
        report.result(kind.final(score))
    return _exit_code(running)
