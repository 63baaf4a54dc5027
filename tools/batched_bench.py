"""`llmkit batched-bench`: how fast many sequences are computed at once, as llama-batched-bench measures it.

Owns the options and the order of things. What is measured and how it is written is llmkit/bench. Rows go to stdout in
llama-batched-bench's formats, the memory that K and V take to stderr, and into JSON.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.params import ContextParams

from . import _options as options
from ._engine import Engine, open_engine
from ._interrupt import Interruption

if TYPE_CHECKING:
    from llmkit.bench.batched import BatchedCase, BatchedParameters, BatchedRun
    from llmkit.bench.batched_formats import BatchedRow, BatchedSettings

EXIT_INTERRUPTED = 130
FLASH = {"auto": -1, "-1": -1, "on": 1, "1": 1, "true": 1, "enabled": 1}


@dataclass(frozen=True)
class BatchedBenchRequest:
    """The options; lists as they were typed, None where they were not."""

    model: str | None = None
    n_pp: str | None = None
    n_tg: str | None = None
    n_pl: str | None = None
    n_parallel: int | None = None
    shared: bool = False
    separate: bool = False
    flash_attn: str = "auto"
    output_format: str = "md"
    context: ContextParams = field(default_factory=ContextParams)
    overrides: list[str] = field(default_factory=list)


def batched_bench_cli(
    model: options.ModelOption = None,
    n_pp: Annotated[str | None, typer.Option("-npp", metavar="N,...", help="Prompt tokens of a sequence.")] = None,
    n_tg: Annotated[str | None, typer.Option("-ntg", metavar="N,...", help="Tokens generated of a sequence.")] = None,
    n_pl: Annotated[str | None, typer.Option("-npl", metavar="N,...", help="Sequences at once.  [default: 1]")] = None,
    n_parallel: Annotated[
        int | None, typer.Option("-np", "--parallel", metavar="N", help="The same as -npl N.")
    ] = None,
    shared: Annotated[bool, typer.Option("-pps", help="One prompt, computed once, for all sequences.")] = False,
    separate: Annotated[
        bool, typer.Option("-tgs", help="Generate one sequence after the other, not a token of each at a time.")
    ] = False,
    unified: Annotated[
        bool | None,
        typer.Option(
            "-kvu/-no-kvu", "--kv-unified/--no-kv-unified", help="For llama.cpp's sake: the memory always is."
        ),
    ] = None,
    output_format: Annotated[
        str, typer.Option("--output-format", metavar="md|jsonl", help="How rows are written.")
    ] = "md",
    n_ctx: options.CtxSizeOption = 0,
    n_batch: options.BatchOption = 2048,
    n_ubatch: options.UbatchOption = 512,
    n_threads: options.ThreadsOption = 0,
    type_k: options.TypeKOption = "f16",
    type_v: options.TypeVOption = "f16",
    swa_full: options.SwaFullOption = False,
    flash_attn: Annotated[
        str, typer.Option("-fa", "--flash-attn", metavar="on|auto", help="For llama.cpp's sake: it is always on.")
    ] = "auto",
    overrides: options.OverrideOption = None,
) -> int:
    """Measure how fast prompts and tokens of many sequences are computed at once, in llama-batched-bench's way.

    A row for each combination of -npp, -ntg and -npl. stderr adds the memory that keys and values took.
    """
    if unified:
        report.note("-kvu: the memory is always shared by all sequences")
    if unified is False:
        raise UsageError("the memory is always shared by all sequences, so it cannot be divided", "Leave -no-kvu out.")
    return batched_bench(
        BatchedBenchRequest(
            model, n_pp, n_tg, n_pl, n_parallel, shared, separate, flash_attn, output_format,
            ContextParams(n_ctx, n_batch, n_ubatch, n_threads, type_k, type_v, swa_full=swa_full), overrides or [],
        )
    )  # fmt: skip


def batched_bench(request: BatchedBenchRequest) -> int:
    """Measures all combinations and shows each as soon as it is there; the exit code: 0, or 130 if interrupted."""
    from llmkit.bench.batched import BatchedRun
    from llmkit.bench.batched_formats import BATCHED_FORMATS
    from llmkit.engine.generation.timings import Timings

    parameters = _parameters(request)
    if request.output_format not in BATCHED_FORMATS:
        raise UsageError(f"--output-format is {request.output_format!r}; md or jsonl is expected")
    printer = BATCHED_FORMATS[request.output_format]()
    context = replace(request.context, n_seq_max=max(parameters.n_pl))
    with (
        open_engine(request.model, context, Timings(), needs_text=False, overrides=request.overrides) as engine,
        Interruption() as interruption,
    ):
        run = BatchedRun(engine.ctx, request.context.n_batch, interruption)
        report.stream(printer.header(_settings(request, engine, parameters)))
        run.warm_up()
        for case in parameters.cases():
            row = _measure(run, case, engine)
            if row is None:
                break
            report.stream(printer.row(row))
        report.stream(printer.footer())
    return EXIT_INTERRUPTED if interruption() else 0


def _parameters(request: BatchedBenchRequest) -> "BatchedParameters":
    """The lists as numbers; UsageError names the first that is wrong."""
    from llmkit.bench.batched import BatchedParameters
    from llmkit.bench.ranges import parse_numbers

    if request.flash_attn not in FLASH:
        raise UsageError(
            f"-fa is {request.flash_attn!r}; on or auto is expected", "attention is always of the flash kind"
        )
    if request.n_parallel is not None and request.n_pl is not None:
        raise UsageError("-np and -npl are both given", "-np N means -npl N; give one of them.")
    n_pl = "1" if request.n_pl is None else request.n_pl
    n_pl = n_pl if request.n_parallel is None else str(request.n_parallel)
    pairs = (("-npp", request.n_pp), ("-ntg", request.n_tg), ("-npl", n_pl))
    n_pp, n_tg, n_seqs = (parse_numbers(option, [text] if text else []) for option, text in pairs)
    return BatchedParameters(n_pp, n_tg, n_seqs, request.shared, request.separate)


def _settings(request: BatchedBenchRequest, engine: Engine, parameters: "BatchedParameters") -> "BatchedSettings":
    from llmkit.bench.batched_formats import BatchedSettings

    context = request.context
    return BatchedSettings(
        engine.ctx.n_ctx, context.n_batch, context.n_ubatch, FLASH[request.flash_attn], engine.ctx.n_threads,
        parameters.shared, parameters.separate,
    )  # fmt: skip


def _measure(run: "BatchedRun", case: "BatchedCase", engine: Engine) -> "BatchedRow | None":
    """The case's row; None if it was interrupted."""
    from llmkit.bench.batched import Interrupted
    from llmkit.bench.batched_formats import BatchedRow

    name = f"PP {case.n_pp}, TG {case.n_tg}, B {case.n_pl}"
    try:
        room = run.room(case)
        if room is not None:
            report.note(f"{name}: does not fit: {room.needed} tokens needed, {room.available} available")
            return BatchedRow(case, None, room)
        times = run.run(case)
    except Interrupted:
        return None
    used, peak, total = (n / 2**20 for n in (times.kv_used, times.kv_peak, times.kv_total))
    report.note(f"{name}: KV {used:.1f} MiB used, {peak:.1f} MiB at most, of {total:.1f} MiB")
    return BatchedRow(case, times)
