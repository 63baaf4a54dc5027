"""`llmkit quantize`: makes a smaller model file of a larger one; cuts files into parts and joins them.

Owns the options, which are those of llama-quantize and llama-gguf-split, and the order of things. The rules and the
work are in llmkit/quantization.
"""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmkit import report
from llmkit.errors import QuantizeError, UsageError

from ._options import JsonOption
from ._resplit import ResplitRequest, resplit

if TYPE_CHECKING:
    from llmkit.files.gguf_reader import GgufFile
    from llmkit.quantization.importance import Importance
    from llmkit.quantization.options import QuantizeOptions
    from llmkit.quantization.outputs import Output
    from llmkit.quantization.plan import Plan

SUFFIX = ".gguf"


@dataclass(frozen=True)
class QuantizeRequest:
    """What to quantise, where to, how. output None with dry_run; max_buffer in bytes, 0 for the default."""

    input: Path
    output: Path | None
    options: "QuantizeOptions"
    imatrix: str | None = None
    include: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    n_threads: int = 0
    max_buffer: int = 0
    dry_run: bool = False
    as_json: bool = False
    strict: bool = False


def quantize_cli(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="IN [OUT] TYPE [NTHREADS]",
            help="The model; the file to write, ggml-model-TYPE.gguf beside the model when left out; the file type, by "
            "name or number; how many threads. With --split and --merge: IN OUT.",
            show_default=False,
        ),
    ],
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Also quantise what is quantised already, which costs quality.")
    ] = False,
    leave_output_tensor: Annotated[
        bool, typer.Option("--leave-output-tensor", help="Leave output.weight as it is.")
    ] = False,
    pure: Annotated[bool, typer.Option("--pure", help="No mixture: the same type for every tensor.")] = False,
    imatrix: Annotated[
        str | None,
        typer.Option("--imatrix", metavar="FILE", help="An importance matrix, GGUF or .dat: which columns count most."),
    ] = None,
    include_weights: Annotated[
        list[str] | None,
        typer.Option("--include-weights", metavar="NAME", help="Use it only for tensors with NAME in their name."),
    ] = None,
    exclude_weights: Annotated[
        list[str] | None,
        typer.Option("--exclude-weights", metavar="NAME", help="Use it not for tensors with NAME in their name."),
    ] = None,
    output_tensor_type: Annotated[
        str | None, typer.Option("--output-tensor-type", metavar="TYPE", help="The tensor type of output.weight.")
    ] = None,
    token_embedding_type: Annotated[
        str | None, typer.Option("--token-embedding-type", metavar="TYPE", help="That of the token embeddings.")
    ] = None,
    tensor_type: Annotated[
        list[str] | None,
        typer.Option("--tensor-type", metavar="REGEX=TYPE", help="That of tensors whose name REGEX is found in."),
    ] = None,
    tensor_type_file: Annotated[
        list[Path] | None,
        typer.Option("--tensor-type-file", metavar="FILE", help="REGEX=TYPE, separated by spaces or newlines."),
    ] = None,
    prune_layers: Annotated[
        str | None, typer.Option("--prune-layers", metavar="L0,L1,...", help="Leave these layers out.")
    ] = None,
    keep_split: Annotated[
        bool, typer.Option("--keep-split", help="Write as many parts as are read, under OUT-00001-of-0000N.gguf.")
    ] = False,
    override_kv: Annotated[
        list[str] | None,
        typer.Option("--override-kv", metavar="KEY=TYPE:VALUE", help="Set metadata; TYPE is int, float, bool or str."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail where the rows of a tensor do not fit the type it should have.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing: show what it would be, and its size.")] = (
        False
    ),
    max_buffer_size: Annotated[
        int, typer.Option("--max-buffer-size", metavar="MIB", help="Rows kept in memory at most, in MiB.")
    ] = 8192,
    split: Annotated[
        bool, typer.Option("--split", help="Cut the file IN into parts OUT-00001-of-0000N.gguf; nothing is quantised.")
    ] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Join the parts, the first of which is IN, into the file OUT.")
    ] = False,
    split_max_tensors: Annotated[
        int | None,
        typer.Option("--split-max-tensors", metavar="N", help="Tensors in a part at most; 128 where nothing is given."),
    ] = None,
    split_max_size: Annotated[
        str, typer.Option("--split-max-size", metavar="N(M|G)", help="Size of a part at most.", show_default=False)
    ] = "",
    no_tensor_first_split: Annotated[
        bool, typer.Option("--no-tensor-first-split", help="Put no tensors into the first part.")
    ] = False,
    delete_splits: Annotated[bool, typer.Option("--delete-splits", help="After --merge, delete the parts.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Quantise the model IN, which should be F16, BF16 or F32, to the file type TYPE, as llama-quantize does: the bytes
    are the same.

    -v shows what becomes of every tensor. The file appears under its name when it is complete.
    """
    if "" in arguments:  # as an unset variable of a script leaves it; a path of it would be the folder one is in
        raise UsageError("a file's name is empty", "llmkit quantize IN [OUT] TYPE [NTHREADS]")
    if split or merge:
        flags = (allow_requantize, leave_output_tensor, pure, keep_split, strict, max_buffer_size != 8192)
        names = (imatrix, include_weights, exclude_weights, output_tensor_type, token_embedding_type)
        if any((*flags, *names, tensor_type, tensor_type_file, prune_layers, override_kv)):
            raise UsageError("--split and --merge leave the tensors as they are", "Give no options of quantising.")
        limits = (split_max_tensors, split_max_size, no_tensor_first_split)
        resplitting = ResplitRequest(Path(), Path(), merge, *limits, delete_splits, dry_run, as_json)
        return _resplit(arguments, split and merge, resplitting)
    if split_max_tensors is not None or split_max_size or no_tensor_first_split or delete_splits:
        raise UsageError("--split-... and --delete-splits go with --split or --merge")
    if max_buffer_size < 1:
        raise UsageError(f"invalid --max-buffer-size {max_buffer_size}", "Give a number of MiB, at least 1.")
    options, output, n_threads = _read(
        arguments,
        dict(pure=pure, leave_output=leave_output_tensor, allow_requantize=allow_requantize, keep_split=keep_split),
        (output_tensor_type, token_embedding_type),
        (tensor_type or [], tensor_type_file or []),
        (override_kv or [], prune_layers),
    )
    target = None if dry_run else output
    filters = (include_weights or [], exclude_weights or [])
    buffer = max_buffer_size << 20
    request = QuantizeRequest(
        Path(arguments[0]), target, options, imatrix, *filters, n_threads, buffer, dry_run, as_json, strict
    )
    quantize(request)


def _resplit(arguments: list[str], both: bool, request: ResplitRequest) -> None:
    if both:
        raise UsageError("either --split or --merge can be specified, but not both")
    if len(arguments) != 2:
        raise UsageError("--split and --merge take two arguments", "llmkit quantize --split IN OUT")
    resplit(replace(request, input=Path(arguments[0]), output=Path(arguments[1])))


def _read(
    arguments: list[str],
    flags: dict[str, Any],
    types: tuple[str | None, str | None],
    rules: tuple[list[str], list[Path]],
    keys: tuple[list[str], str | None],
) -> "tuple[QuantizeOptions, Path, int]":
    """The options, the output file and the number of threads, from their text forms."""
    from llmkit.quantization import options as o

    output_type, embedding_type = types
    file_type, output, n_threads = _places(arguments, flags["keep_split"])
    tensor_rules = [o.parse_tensor_rule(text) for text in rules[0]]
    for path in rules[1]:
        tensor_rules += o.read_tensor_rules(path)
    options = o.QuantizeOptions(
        file_type,
        output_type=output_type and o.parse_tensor_type(output_type, "--output-tensor-type"),
        embedding_type=embedding_type and o.parse_tensor_type(embedding_type, "--token-embedding-type"),
        tensor_rules=tuple(tensor_rules),
        overrides=dict(o.parse_override(text) for text in keys[0]),
        pruned_layers=o.parse_layers(keys[1]) if keys[1] is not None else frozenset(),
        **flags,
    )
    return options, output, n_threads


def _places(arguments: list[str], keep_split: bool) -> Any:
    """(file type, output, threads) of IN [OUT] TYPE [NTHREADS]; what names a file type is one, not a file."""
    from llmkit.quantization.file_types import find_file_type, parse_file_type

    if len(arguments) < 2:
        raise UsageError("the file type is missing", "llmkit quantize IN [OUT] TYPE [NTHREADS]")
    file_type, rest = find_file_type(arguments[1]), arguments[2:]
    output = Path(arguments[1])
    if file_type is None:
        if not rest:
            hint = "llmkit quantize IN [OUT] TYPE [NTHREADS]; `llmkit quantize --help` shows more"
            raise UsageError(f"missing file type: {arguments[1]!r} is none", hint)
        file_type, rest = parse_file_type(rest[0]), rest[1:]
        if keep_split and output.name.endswith(SUFFIX):
            output = output.with_name(output.name.removesuffix(SUFFIX))
    else:
        output = Path(arguments[0]).parent / f"ggml-model-{file_type.name}{'' if keep_split else SUFFIX}"
    if len(rest) > 1:
        raise UsageError(f"too many arguments: {' '.join(rest[1:])}", "llmkit quantize IN [OUT] TYPE [NTHREADS]")
    return file_type, output, _thread_count(rest[0] if rest else "0")


def _thread_count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > 1024:
        raise UsageError(f"invalid nthread {text!r}", "Give a number of threads.")
    return int(text)


def quantize(request: QuantizeRequest) -> None:
    """Plan, write unless it is a dry run, and show."""
    from llmkit.files.gguf_reader import open_gguf
    from llmkit.quantization.plan import make_plan

    start = time.perf_counter()
    if request.include and request.exclude:
        raise UsageError("--include-weights and --exclude-weights exclude each other")
    if (request.include or request.exclude) and request.imatrix is None:
        raise UsageError("--include-weights and --exclude-weights are about an importance matrix", "Give --imatrix.")
    with open_gguf(request.input) as gguf:
        importance = _importance(request)
        plan = make_plan(gguf, request.options, importance)
        _announce(request, plan)
        files = _write(request, gguf, plan, importance)
        _finish(request, plan, importance, files, time.perf_counter() - start)


def _importance(request: QuantizeRequest) -> "Importance":
    from llmkit.quantization.importance import Importance, load_importance

    if request.imatrix is None:
        return Importance()
    importance, imatrix = load_importance(request.imatrix, request.include, request.exclude)
    if imatrix.datasets:
        report.detail(f"imatrix datasets=[{', '.join(map(repr, imatrix.datasets))}]")
    report.note(
        f"loaded {len(imatrix.entries)} importance matrix entries from {request.imatrix} "
        f"computed on {imatrix.n_chunks} chunks"
    )
    if len(importance.weights) != len(imatrix.entries):
        report.note(f"have {len(importance.weights)} importance matrix entries")
    return importance


def _announce(request: QuantizeRequest, plan: "Plan") -> None:
    """What is about to happen, and with -v which tensors do not fit; QuantizeError if none may be."""
    from . import _quantize_text as show

    threads = f" using {request.n_threads} threads" if request.n_threads else ""
    what = f"as {request.options.file_type.name}{threads}"
    if request.dry_run:
        report.note(f"calculating quantization size for '{request.input}' {what}")
    else:
        report.note(f"quantizing '{request.input}' to '{request.output}' {what}")
    for tensor in plan.tensors:
        if tensor.instead_of >= 0:
            report.detail(f"warning: {show.fallback_line(tensor)}")
    if request.strict and plan.fallbacks:
        hint = "Leave out --strict to take the types that fit; -v names the tensors."
        raise QuantizeError(show.fallback_count(plan), hint)


def _write(request: QuantizeRequest, gguf: "GgufFile", plan: "Plan", importance: "Importance") -> "list[Output]":
    """Quantise; returns the files that were written, none for a dry run."""
    if request.output is None:
        return []
    from llmkit.files.gguf_split import part_path
    from llmkit.quantization import job, outputs

    from . import _quantize_text as show

    n = len(plan.metadata)
    split = request.options.keep_split
    paths = [part_path(request.output, i + 1, n) for i in range(n)] if split else [request.output]
    job.check_job(plan, importance)
    files = outputs.output_files(plan, paths)
    outputs.check_outputs(gguf, files)
    n_threads = request.n_threads or _cores()
    work = job.Job(gguf, plan, importance, files, request.max_buffer)
    with report.progress("quantizing", plan.n_bytes_before) as bar:

        def on_tensor(index: int) -> None:
            if importance and plan.tensors[index].changes and importance.of(plan.tensors[index].info) is None:
                report.detail(f"did not find weights for {plan.tensors[index].name}")
            report.detail(show.tensor_line(plan, index, dry_run=False))

        work.run(n_threads, on_tensor, bar.update)
    return files


def _cores() -> int:
    """The processors that this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _finish(
    request: QuantizeRequest, plan: "Plan", importance: "Importance", files: "list[Output]", seconds: float
) -> None:
    """The summary, or the whole as JSON."""
    from llmkit.quantization.job import n_unweighted

    from . import _quantize_text as show

    if plan.fallbacks:
        report.warning(show.fallback_count(plan))
    unmatched = n_unweighted(plan, importance)
    if unmatched:
        report.warning(f"{unmatched} tensor(s) are not in the importance matrix, and quantised without; -v names them")
    needs = [tensor for tensor in plan.tensors if tensor.changes and tensor.needs_imatrix]
    if request.dry_run and needs and request.imatrix is None:
        report.warning(
            "dry run completed successfully, but actually completing this quantization will require an imatrix!"
        )
    if request.as_json:
        result = {"input": str(request.input), "outputs": [str(file.path) for file in files]}
        report.result_json({**result, "seconds": seconds, "dry_run": request.dry_run, **show.plan_json(plan)})
        return
    if request.dry_run:
        for index in range(len(plan.tensors)):
            report.result(show.tensor_line(plan, index, dry_run=True))
    for line in show.size_lines(plan):
        report.result(line)
    if not request.dry_run:
        report.result(f"total time  = {1000 * seconds:8.2f} ms")
