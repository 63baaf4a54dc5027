"""`llmkit compare`: what one wants to know of a quantised model before shipping it, beside the one it comes from.

Owns the options and the order of things: all models open at once, one pass over the text, then their weights.
"""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.params import ContextParams

from . import _evaluate_options as options
from ._engine import Engine, open_engine
from ._interrupt import Interruption
from ._options import JsonOption, ThreadsOption, TypeKOption, TypeVOption, UbatchOption
from ._running import Running
from ._text import read_source

if TYPE_CHECKING:
    from llmkit.evaluate.compare import ModelScore
    from llmkit.evaluate.tensor_errors import TensorDifference
    from llmkit.evaluate.windows import Windows
    from llmkit.files.gguf_reader import GgufFile

    from ._compare_text import Row

EXIT_INTERRUPTED = 130
MIN_FOR_PLOT = 3
_N_FOR_SPEED = 128


@dataclass(frozen=True)
class CompareRequest:
    """Which models, over which text. n_worst: tensors named for each model; plot: the image to write."""

    models: list[str]
    file: str | None = None
    n_ctx: int = options.N_CTX
    n_chunks: int = -1
    n_worst: int = 5
    plot: str | None = None
    context: ContextParams = field(default_factory=ContextParams)
    as_json: bool = False


def compare_cli(
    models: Annotated[
        list[str], typer.Argument(metavar="A B [C ...]", help="Model files or names; A is the standard.")
    ],
    file: options.TextOption = None,
    n_ctx: options.ChunkSizeOption = None,
    n_chunks: options.ChunksOption = -1,
    n_batch: options.BatchOption = 2048,
    n_ubatch: UbatchOption = 512,
    n_threads: ThreadsOption = 0,
    type_k: TypeKOption = "f16",
    type_v: TypeVOption = "f16",
    n_worst: Annotated[int, typer.Option("--tensors", metavar="N", help="Name the N worst tensors of each model.")] = 5,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Draw size against KL divergence; needs matplotlib.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Compare models with one vocabulary over a text: size, bits per weight, perplexity, KL divergence from the first,
    how often they agree on the likeliest token, speed, and the tensors that differ most.
    """
    context = ContextParams(0, n_batch, n_ubatch, n_threads, type_k, type_v, swa_full=True)
    n_ctx = options.N_CTX if n_ctx is None else n_ctx
    return compare(CompareRequest(models, file, n_ctx, n_chunks, n_worst, plot, context, as_json))


def compare(request: CompareRequest) -> int:
    """Compares and shows; returns the exit code: 0, or 130 if interrupted, with what was done until then shown."""
    from llmkit.evaluate.text import decode_text

    _check(request)
    text = decode_text(*read_source(request.file))
    with ExitStack() as stack:
        engines = [stack.enter_context(_open(request, model)) for model in request.models]
        windows = _windows(request, engines, text)
        return _run(request, engines, windows)


def _check(request: CompareRequest) -> None:
    """UsageError for what makes no sense, before anything is read."""
    from llmkit.evaluate.windows import check_sizes

    check_sizes(request.n_ctx, request.n_chunks)
    if len(request.models) < 2:
        raise UsageError("there is one model", "Name at least two: the first is what the others are compared with.")
    if request.n_worst < 0:
        raise UsageError(f"--tensors is {request.n_worst}; at least 0 is expected")
    if request.plot is None:
        return
    from ._compare_text import need_plot_library

    if len(request.models) < MIN_FOR_PLOT:
        raise UsageError("--plot needs at least three models", "Two give a single point: the table says it all.")
    need_plot_library()


def _open(request: CompareRequest, model: str) -> AbstractContextManager[Engine]:
    """An engine on one of the models, with room for a batch of chunks."""
    from llmkit.engine.generation.timings import Timings

    n_seq = options.n_together(request.context.n_batch, request.n_ctx)
    params = options.holding(request.context, n_seq, max(request.n_ctx, _N_FOR_SPEED))
    return open_engine(model, params, Timings(), needs_text=True)


def _windows(request: CompareRequest, engines: list[Engine], text: str) -> "Windows":
    """The text in chunks, once it is clear that all models see the same tokens."""
    from llmkit.evaluate.compare import check_same_tokens
    from llmkit.evaluate.text import encode_text
    from llmkit.evaluate.windows import chunks

    tokens = [encode_text(engine.tokenizer, text) for engine in engines if engine.tokenizer is not None]
    n_vocabs = [engine.model.config.n_vocab for engine in engines]
    check_same_tokens(_labels(request), tokens, n_vocabs)
    tokenizer = engines[0].tokenizer
    bos = tokenizer.bos_id if tokenizer is not None and tokenizer.add_bos else None
    return chunks(tokens[0], request.n_ctx, request.n_chunks, bos)


def _labels(request: CompareRequest) -> list[str]:
    """Short names: the files' own where those differ."""
    short = [Path(model).name for model in request.models]
    return short if len(set(short)) == len(short) else list(request.models)


def _run(request: CompareRequest, engines: list[Engine], windows: "Windows") -> int:
    from llmkit.evaluate.compare import ModelScore
    from llmkit.evaluate.compare import compare as measure

    n_seq = options.n_together(request.context.n_batch, request.n_ctx)
    report.note(
        f"{windows.n} chunks of {windows.length} tokens, {windows.n_scored} of them scored, {len(engines)} models"
    )
    for engine in engines:
        engine.ctx.warm_up()
    scores = [ModelScore() for _ in engines]
    with Interruption() as stop:
        with Running("comparing", "chunks", windows.n, n_seq, as_json=True) as running:
            for _ in measure([engine.ctx for engine in engines], windows, n_seq, scores, stop):
                running.step("")
        rows = _rows(request, engines, windows, scores, stop)
        whole = not stop()
    _show(request, windows, rows, running.n_done)
    if whole:
        return 0
    report.note(f"interrupted after {running.n_done} of {running.total} chunks")
    return EXIT_INTERRUPTED


def _rows(
    request: CompareRequest, engines: list[Engine], windows: "Windows", scores: "list[ModelScore]", stop: Interruption
) -> "list[Row]":
    """What is left to measure of each model, with the scores; less of it when interrupted."""
    from llmkit.evaluate.speed import N_DECODED, decode_speed

    from ._compare_text import Row

    rows = []
    for label, engine, score in zip(_labels(request), engines, scores, strict=True):
        gguf = engine.model.gguf
        tokens = windows.tokens.tolist()
        tokens *= -(-(2 * N_DECODED + 1) // len(tokens))
        speed = 0.0 if stop() else decode_speed(engine.ctx, tokens)
        row = Row(label, gguf.path, gguf.n_bytes, _bits_per_weight(gguf), score, speed)
        row.differences = _worst(request, engines[0], engine, stop)
        rows.append(row)
    return rows


def _worst(request: CompareRequest, base: Engine, engine: Engine, stop: Interruption) -> "list[TensorDifference]":
    """The tensors that differ most from the base's, the worst first."""
    from llmkit.evaluate.tensor_errors import tensor_differences

    if engine is base or request.n_worst == 0:
        return []
    found = tensor_differences(base.model.gguf, engine.model.gguf, engine.ctx.n_threads, stop)
    return sorted(found, key=lambda d: -d.error)[: request.n_worst]


def _bits_per_weight(gguf: "GgufFile") -> float:
    infos = gguf.tensors.values()
    return 8 * sum(info.n_bytes for info in infos) / sum(info.n_elements for info in infos)


def _show(request: CompareRequest, windows: "Windows", rows: "list[Row]", n_done: int) -> None:
    from . import _compare_text as show

    if request.as_json:
        numbers = {"n_ctx": windows.length, "n_chunks": windows.n, "n_chunks_done": n_done}
        numbers |= {"n_scored": n_done * windows.n_scored}
        reason = "done" if n_done == windows.n else "interrupted"
        report.result_json(numbers | {"stop_reason": reason, "models": [show.row_json(row) for row in rows]})
    elif n_done:
        report.result_table(show.table(rows), show.HEADERS)
        worst = show.tensor_table(rows)
        if worst:
            report.result()
            report.result_table(worst, show.TENSOR_HEADERS)
    if request.plot is not None and n_done:
        show.plot(rows, Path(request.plot))
        report.note(f"the plot is in {request.plot}")
