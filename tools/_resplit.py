"""`llmkit quantize --split` and `--merge`: what llama-gguf-split does, with its lines.

Owns the order of things and the messages. The work is in llmkit/quantization/resplit.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmkit import report
from llmkit.errors import OutputError, UsageError

if TYPE_CHECKING:
    from llmkit.quantization.resplit import Part


@dataclass(frozen=True)
class ResplitRequest:
    """A file to cut (output: the beginning of the parts' names) or, with `merge`, the first part of one to join.

    max_tensors None and max_size "": 128 tensors a part. delete: remove the parts that were joined.
    """

    input: Path
    output: Path
    merge: bool = False
    max_tensors: int | None = None
    max_size: str = ""
    empty_first: bool = False
    delete: bool = False
    dry_run: bool = False
    as_json: bool = False


def resplit(request: ResplitRequest) -> None:
    """Cut or join, and show."""
    if request.merge:
        _merge(request)
    else:
        _split(request)


def _split(request: ResplitRequest) -> None:
    from llmkit.files.gguf_reader import open_gguf
    from llmkit.quantization.outputs import check_outputs
    from llmkit.quantization.resplit import MAX_TENSORS, SplitLimits, parse_size, split_parts

    if request.max_tensors is not None and request.max_size:
        raise UsageError("either --split-max-tensors or --split-max-size can be specified, but not both")
    if request.max_tensors is not None and request.max_tensors < 1:
        raise UsageError(f"--split-max-tensors is {request.max_tensors}; at least 1 is expected")
    if request.delete:
        raise UsageError("--delete-splits goes with --merge")
    n_bytes = parse_size(request.max_size) if request.max_size else 0
    with open_gguf(request.input) as gguf:
        limits = SplitLimits(request.max_tensors or MAX_TENSORS, n_bytes, request.empty_first)
        parts = split_parts(gguf, request.output, limits)
        if not request.as_json:
            report.result(f"n_split: {len(parts)}")
            for i, part in enumerate(parts):
                size = f"total_size = {part.n_bytes // 1000**2}M"
                report.result(f"split {i + 1:05d}: n_tensors = {len(part.infos)}, {size}")
        if not request.dry_run:
            check_outputs(gguf, parts)
            _write(
                gguf,
                parts,
                lambda part: None if request.as_json else report.result(f"Writing file {part.path} ... done"),
            )
        n_tensors = len(gguf.tensors)
        report.note(f"gguf_split: {len(parts)} gguf split written with a total of {n_tensors} tensors.")
        _as_json(request, parts)


def _merge(request: ResplitRequest) -> None:
    from llmkit.files.gguf_reader import open_gguf
    from llmkit.quantization.outputs import check_outputs
    from llmkit.quantization.resplit import merged

    if request.max_tensors is not None or request.max_size or request.empty_first:
        raise UsageError("--split-max-tensors, --split-max-size and --no-tensor-first-split go with --split")
    report.note(f"gguf_merge: {request.input} -> {request.output}")
    if request.output.exists():
        raise OutputError(f"output file {request.output} already exists", "Remove it, or give another name.")
    with open_gguf(request.input) as gguf:
        part = merged(gguf, request.output)
        paths = list(gguf.paths)
        if not request.dry_run:
            check_outputs(gguf, [part])
            _write(gguf, [part], lambda part: None)
        report.note(f"gguf_merge: {request.output} merged from {len(paths)} split with {len(part.infos)} tensors.")
        _as_json(request, [part])
    for path in paths if request.delete and not request.dry_run else []:
        path.unlink()
        report.note(f"gguf_merge: deleted file {path}")


def _write(gguf: Any, parts: "list[Part]", on_part: Any) -> None:
    from llmkit.quantization.resplit import write_parts

    with report.progress("writing", sum(info.n_bytes for part in parts for info in part.infos)) as bar:
        write_parts(gguf, parts, on_part, bar.update)


def _as_json(request: ResplitRequest, parts: "list[Part]") -> None:
    """The files as one JSON object, if asked for; sizes in bytes."""
    if not request.as_json:
        return
    files = [{"path": str(part.path), "n_tensors": len(part.infos), "bytes": part.layout.n_bytes} for part in parts]
    report.result_json({"input": str(request.input), "dry_run": request.dry_run, "outputs": files})
