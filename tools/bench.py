"""`llmkit bench`: measures how fast models run, as llama-bench does; `--machine` how fast the machine could run them.

Owns the options and the order of things. What is measured and how it is written is llmkit/bench. Results go to stdout
in llama-bench's formats; our own figures to stderr, and into JSON.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmkit import report
from llmkit.errors import UsageError
from llmkit.shell.completion import model_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llmkit.bench.cases import Case, Parameters
    from llmkit.bench.formats import Printer
    from llmkit.bench.record import Record
    from llmkit.models.model import Model

_LIST = "; lists and ranges: 1,2 64-256+64 64-512*2"


@dataclass(frozen=True)
class BenchOptions:
    """The options as they were typed; an empty list stands for the default."""

    models: list[str] = field(default_factory=list)
    n_prompt: list[str] = field(default_factory=list)
    n_gen: list[str] = field(default_factory=list)
    n_pg: list[str] = field(default_factory=list)
    n_depth: list[str] = field(default_factory=list)
    n_batch: list[str] = field(default_factory=list)
    n_ubatch: list[str] = field(default_factory=list)
    n_threads: list[str] = field(default_factory=list)
    type_k: list[str] = field(default_factory=list)
    type_v: list[str] = field(default_factory=list)
    flash_attn: list[str] = field(default_factory=list)
    reps: int = 5
    delay: int = 0
    warm_up: bool = True
    output: str = "md"
    output_err: str = "none"
    progress: bool = False


def bench_cli(
    models: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--model",
            metavar="PATH|NAME",
            help="A model file or a pulled model; several: again, or ,",
            autocompletion=model_names,
        ),
    ] = None,
    n_prompt: Annotated[
        list[str] | None, typer.Option("-p", "--n-prompt", metavar="N", help=f"Prompt tokens [512]{_LIST}.")
    ] = None,
    n_gen: Annotated[
        list[str] | None, typer.Option("-n", "--n-gen", metavar="N", help="Tokens generated one by one [128].")
    ] = None,
    n_pg: Annotated[
        list[str] | None, typer.Option("-pg", metavar="PP,TG", help="A prompt and a generation timed together.")
    ] = None,
    n_depth: Annotated[
        list[str] | None,
        typer.Option("-d", "--n-depth", metavar="N", help="Tokens in the context before the test [0]."),
    ] = None,
    n_batch: Annotated[
        list[str] | None, typer.Option("-b", "--batch-size", metavar="N", help="Prompt tokens in a chunk [2048].")
    ] = None,
    n_ubatch: Annotated[
        list[str] | None, typer.Option("-ub", "--ubatch-size", metavar="N", help="Tokens in one pass [512].")
    ] = None,
    n_threads: Annotated[
        list[str] | None, typer.Option("-t", "--threads", metavar="N", help="Threads [the cores there are for us].")
    ] = None,
    type_k: Annotated[
        list[str] | None, typer.Option("-ctk", "--cache-type-k", metavar="TYPE", help="How keys are kept [f16].")
    ] = None,
    type_v: Annotated[
        list[str] | None, typer.Option("-ctv", "--cache-type-v", metavar="TYPE", help="How values are kept [f16].")
    ] = None,
    flash_attn: Annotated[
        list[str] | None,
        typer.Option("-fa", "--flash-attn", metavar="on|auto", help="For llama-bench's sake: it is always on."),
    ] = None,
    reps: Annotated[int, typer.Option("-r", "--repetitions", metavar="N", help="Repetitions of each test.")] = 5,
    delay: Annotated[int, typer.Option("--delay", metavar="S", help="Seconds to wait before each test.")] = 0,
    no_warmup: Annotated[bool, typer.Option("--no-warmup", help="Leave out the run before the repetitions.")] = False,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FORMAT", help="To stdout: md, csv, json, jsonl or sql.")
    ] = "md",
    output_err: Annotated[
        str, typer.Option("-oe", "--output-err", metavar="FORMAT", help="The same to stderr; none: nothing.")
    ] = "none",
    progress: Annotated[bool, typer.Option("--progress", help="Say on stderr which test is running.")] = False,
    machine: Annotated[bool, typer.Option("--machine", help="Measure the machine's ceilings, and no model.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json; with --machine one object.")] = False,
) -> int:
    """Measure how fast models compute prompts (pp) and generate tokens (tg), in llama-bench's way and formats.

    stderr adds the share of the machine's ceilings that was reached.
    """
    if as_json and output not in ("md", "json"):
        raise UsageError(f"--json and -o {output} exclude each other")
    if machine:
        return bench_machine(n_threads or [], as_json or output == "json")
    return bench(
        BenchOptions(
            models or [], n_prompt or [], n_gen or [], n_pg or [], n_depth or [], n_batch or [], n_ubatch or [],
            n_threads or [], type_k or [], type_v or [], flash_attn or [], reps, delay, not no_warmup,
            "json" if as_json else output, output_err, progress,
        )
    )  # fmt: skip


def bench(request: BenchOptions) -> int:
    """Measures all combinations and shows each as soon as it is there; returns the exit code, 0."""
    parameters = _parameters(request)
    printers = _printers(request)
    _show(printers, [printer.header(parameters) for printer, _ in printers])
    records = []
    for record in _measure(parameters, request.progress):
        _show(printers, [printer.row(record) for printer, _ in printers])
        records.append(record)
    _show(printers, [printer.footer() for printer, _ in printers])
    for record in records:
        report.note(_shares(record))
    return 0


def _parameters(request: BenchOptions) -> "Parameters":
    """The options as numbers; UsageError names the first that is wrong. Models are found here, before anything runs."""
    from llmkit.bench.cases import FLASH_AUTO, FLASH_ON, Parameters
    from llmkit.bench.ranges import parse_numbers, parse_pairs, parse_words
    from llmkit.engine.thread_team import default_threads
    from llmkit.params import KV_TYPES

    numbers = {
        "n_prompt": parse_numbers("-p", request.n_prompt),
        "n_gen": parse_numbers("-n", request.n_gen),
        "n_depth": parse_numbers("-d", request.n_depth),
        "n_batch": parse_numbers("-b", request.n_batch),
        "n_ubatch": parse_numbers("-ub", request.n_ubatch),
        "n_threads": parse_numbers("-t", request.n_threads) or [default_threads()],
    }
    kv_types = {name: name for name in KV_TYPES}
    flash = dict.fromkeys(("auto", "-1"), FLASH_AUTO) | dict.fromkeys(("on", "1", "true", "enabled"), FLASH_ON)
    words = {
        "type_k": parse_words("-ctk", request.type_k, kv_types),
        "type_v": parse_words("-ctv", request.type_v, kv_types),
        "flash_attn": parse_words("-fa", request.flash_attn, flash),
    }
    given = {name: values for name, values in {**numbers, **words}.items() if values}
    return Parameters(
        _models(request.models),
        n_pg=parse_pairs("-pg", request.n_pg),
        reps=request.reps,
        delay=request.delay,
        warm_up=request.warm_up,
        **given,  # type: ignore[arg-type]
    )


def _models(texts: list[str]) -> list[Path]:
    """Files and names; a comma separates two, unless it is part of a file's name."""
    from llmkit.files.models_table import resolve_model

    names = [name for text in texts for name in ([text] if Path(text).exists() else text.split(","))]
    return [resolve_model(name) for name in names] or [resolve_model(None)]


def _printers(request: BenchOptions) -> "list[tuple[Printer, bool]]":
    """The formats that were asked for, each with whether it goes to stdout."""
    from llmkit.bench.formats import FORMATS

    chosen = [("-o", request.output, True), ("-oe", request.output_err, False)]
    for option, name, _ in chosen:
        if name != "none" and name not in FORMATS:
            raise UsageError(f"{option}: there is no format {name!r}", f"one of {', '.join(FORMATS)}, none")
    return [(FORMATS[name](), to_stdout) for _, name, to_stdout in chosen if name != "none"]


def _show(printers: "list[tuple[Printer, bool]]", texts: list[str]) -> None:
    for (_, to_stdout), text in zip(printers, texts, strict=True):
        if to_stdout:
            report.stream(text)
        else:
            report.stream_stderr(text)


def _measure(parameters: "Parameters", progress: bool) -> "Iterator[Record]":
    """A record for each case; a model stays open for all its cases."""
    _announce_kernels()
    from llmkit.bench.machine import measure_ceilings
    from llmkit.bench.measure import run_case
    from llmkit.bench.record import make_record, own_figures
    from llmkit.bench.roofline import work_of
    from llmkit.engine.context import Context

    cases = list(parameters.cases())
    model: Model | None = None
    for i, case in enumerate(cases, 1):
        if model is None or cases[i - 2].model != case.model:
            model = _open(case)
        ceilings = measure_ceilings(case.n_threads)
        time.sleep(parameters.delay)

        def tell(text: str, place: str = f"benchmark {i}/{len(cases)}: {case.name}") -> None:
            if progress:
                report.note(f"{place}: {text}")

        with Context(model, case.context_params()) as ctx:
            samples = run_case(ctx, case, parameters.reps, parameters.warm_up, tell)
        yield make_record(model, case, samples, own_figures(work_of(model, case), ceilings, samples))


def _open(case: "Case") -> "Model":
    from llmkit.models.model import load_model

    return load_model(case.model, n_threads=case.n_threads)


def _announce_kernels() -> None:
    """Says what takes so long the first time."""
    from llmkit.kernels.jit import compiled_before

    if not compiled_before():
        report.note("compiling the kernels for this machine: once, for less than a minute")


def _shares(record: "Record") -> str:
    """Our own figures in a line: of which ceiling a test reached how much."""
    parts = []
    if record.values["n_prompt"]:
        share, int8, f32 = (
            float(record.extra[key]) for key in ("compute_share", "int8_peak_gop_s", "f32_peak_gflop_s")
        )
        parts.append(f"{share:.0%} of the peak ({int8:.0f} GOP/s int8, {f32:.0f} GFLOP/s f32)")
    if record.values["n_gen"]:
        share, bandwidth = (float(record.extra[key]) for key in ("bandwidth_share", "bandwidth_gb_s"))
        parts.append(f"{share:.0%} of the bandwidth ({bandwidth:.1f} GB/s)")
    threads = record.values["n_threads"]
    return f"{record.values['model_type']}, {record.name}, {threads} threads: {', '.join(parts)}"


def bench_machine(n_threads: list[str], as_json: bool) -> int:
    """Measures and shows the ceilings alone, for each number of threads; returns the exit code, 0."""
    from dataclasses import asdict

    from llmkit.bench.ranges import parse_numbers
    from llmkit.engine.thread_team import default_threads

    counts = parse_numbers("-t", n_threads) or [default_threads()]
    if min(counts) < 1:
        raise UsageError("-t is 0; at least 1 is expected")
    _announce_kernels()
    from llmkit.bench.machine import cpu_name, measure_ceilings, measure_other_paths

    found = [measure_ceilings(n) for n in counts]
    others = [peaks for n in counts for peaks in measure_other_paths(n)]
    if as_json:
        report.result_json({"cpu": cpu_name(), "ceilings": [asdict(c) for c in found], "other_paths": others})
        return 0
    report.result(cpu_name())
    rows = [
        (c.n_threads, c.isa, f"{c.bandwidth_gb_s:.1f}", f"{c.int8_gop_s:.0f}", f"{c.f32_gflop_s:.0f}") for c in found
    ]
    rows += [(o["n_threads"], o["isa"], "", f"{o['int8_gop_s']:.0f}", f"{o['f32_gflop_s']:.1f}") for o in others]
    report.result_table(rows, ("threads", "path", "read GB/s", "int8 GOP/s", "f32 GFLOP/s"))
    return 0
