"""`llmkit inspect`: what is in a model file, whether it runs here, and what memory it takes.

Owns the options and both formats; the facts come from llmkit/inspection. Nothing is computed, and Numba is imported
only with --cpu.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from llmkit import report

from . import _options as options

if TYPE_CHECKING:
    from llmkit.files.gguf_reader import GgufFile
    from llmkit.inspection.contents import Item
    from llmkit.inspection.memory_need import MemoryNeed
    from llmkit.inspection.verdict import Verdict


@dataclass(frozen=True)
class InspectOptions:
    """What to look at, for what context, and how to show it. Without a model only `cpu` is shown."""

    model: str | None = None
    n_ctx: int = 0
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    full: bool = False
    cpu: bool = False
    as_json: bool = False


def inspect_cli(
    model: options.ModelOption = None,
    n_ctx: Annotated[
        int, typer.Option("-c", "--ctx-size", metavar="N", help="The context to count memory for; 0: as trained.")
    ] = 0,
    type_k: options.TypeKOption = "f16",
    type_v: options.TypeVOption = "f16",
    n_ubatch: Annotated[
        int, typer.Option("-ub", "--ubatch-size", metavar="N", help="Tokens in one pass, to count memory for.")
    ] = 512,
    full: Annotated[bool, typer.Option("--full", help="Show long arrays and strings whole.")] = False,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Show what was chosen on this machine: paths, threads, caches, versions.")
    ] = False,
    as_json: options.JsonOption = False,
) -> int:
    """Show what is in a model file, whether it runs here, and what memory it takes with a context.

    With --cpu alone: what llmkit chose on this machine.
    """
    return inspect(InspectOptions(model, n_ctx, n_ubatch, type_k, type_v, full, cpu, as_json))


def inspect(request: InspectOptions) -> int:
    """Looks and shows; returns the exit code, 0 whether or not the model runs."""
    from llmkit.params import ContextParams

    ContextParams(n_ctx=request.n_ctx, n_ubatch=request.n_ubatch, type_k=request.type_k, type_v=request.type_v)
    found: dict[str, object] = {}
    if request.model is not None or not request.cpu:
        found |= _model(request)
    if request.cpu:
        found["cpu"] = _cpu(request.as_json)
    if request.as_json:
        report.result_json(found)
    return 0


def _cpu(as_json: bool) -> dict[str, object]:
    from llmkit.inspection.cpu import cpu

    found = asdict(cpu())
    if not as_json:
        report.result("\nThis machine")
        rows = [(name, ", ".join(value) if isinstance(value, tuple) else value) for name, value in found.items()]
        report.result_table(rows, ("what", "value"))
    return found


def _model(request: InspectOptions) -> dict[str, object]:
    from llmkit.files.gguf_reader import open_gguf
    from llmkit.files.models_table import resolve_model
    from llmkit.inspection.contents import items, type_totals
    from llmkit.inspection.memory_need import memory_need
    from llmkit.inspection.verdict import judge

    with open_gguf(resolve_model(request.model)) as gguf:
        verdict = judge(gguf, request.n_ctx)
        need = None
        if verdict.model is not None:
            need = memory_need(verdict.model, request.n_ctx, request.n_ubatch, request.type_k, request.type_v)
        metadata = items(gguf, full=request.full)
        if not request.as_json:
            _show(gguf, metadata, verdict, need)
        totals = [{**asdict(t), "bits_per_weight": t.bits_per_weight} for t in type_totals(gguf)]
        return _head(gguf) | {
            "metadata": [asdict(item) for item in metadata],
            "tensors": [
                {"name": t.name, "shape": list(t.shape), "type": t.type_name, "n_bytes": t.n_bytes, "offset": t.offset}
                | ({"part": t.part + 1} if len(gguf.paths) > 1 else {})
                for t in gguf.tensors.values()
            ],
            "types": totals,
            "runs": verdict.model is not None,
            "why_not": verdict.why_not,
            "text": verdict.text,
            "tokenizer": verdict.tokenizer,
            "memory": None if need is None else {**asdict(need), "total": need.total},
        }


def _head(gguf: "GgufFile") -> dict[str, object]:
    """The file in a few numbers."""
    tensors = gguf.tensors.values()
    n_params, n_bytes = sum(t.n_elements for t in tensors), sum(t.n_bytes for t in tensors)
    return {
        "files": [str(path) for path in gguf.paths],
        "n_bytes": gguf.n_bytes,
        "version": gguf.version,
        "alignment": gguf.alignment,
        "architecture": _text(gguf, "general.architecture"),
        "name": _text(gguf, "general.name"),
        "n_metadata": len(gguf.metadata),
        "n_tensors": len(gguf.tensors),
        "n_params": n_params,
        "n_tensor_bytes": n_bytes,
        "bits_per_weight": 8 * n_bytes / n_params if n_params else None,
    }


def _text(gguf: "GgufFile", key: str) -> str | None:
    """A string of the metadata; None where it is missing or no string: what is wrong is said with the verdict."""
    value = gguf.metadata.get(key)
    return value if isinstance(value, str) else None


def _show(gguf: "GgufFile", metadata: "list[Item]", verdict: "Verdict", need: "MemoryNeed | None") -> None:
    from llmkit.inspection.contents import type_totals

    report.result("Metadata")
    report.result_table([(_safe(item.key), item.type, _value(item)) for item in metadata], ("key", "type", "value"))
    report.result("\nTensors")
    rows = [
        (_safe(t.name), " x ".join(map(str, t.shape)), t.type_name, t.n_bytes, t.offset, t.part + 1)
        for t in gguf.tensors.values()
    ]
    n = 6 if len(gguf.paths) > 1 else 5
    report.result_table([row[:n] for row in rows], ("name", "shape", "type", "bytes", "offset", "part")[:n])
    report.result("\nTypes")
    totals = type_totals(gguf)
    report.result_table(
        [(t.type, t.n_tensors, t.n_params, t.n_bytes, f"{t.bits_per_weight:.3f}") for t in totals],
        ("type", "tensors", "parameters", "bytes", "bits per weight"),
    )
    report.result("\nFile")
    report.result_table(
        [(name, _safe(", ".join(v) if isinstance(v, list) else _number(v))) for name, v in _head(gguf).items()],
        ("what", "value"),
    )
    report.result(f"\nRuns: {'yes' if verdict.model else f'no: {verdict.why_not}'}")
    if verdict.hint:
        report.result(f"      ({verdict.hint})")
    report.result(f"Text: {'yes' if verdict.text else 'no'}: {verdict.tokenizer}")
    if need is not None:
        _show_memory(need)


def _show_memory(need: "MemoryNeed") -> None:
    types = f"keys {need.type_k}, values {need.type_v}"
    report.result(f"\nMemory for -c {need.n_ctx}, {types}, -ub {need.n_ubatch}")
    rows = [
        ("weights, packed (mapped, shared by processes)", need.packed),
        ("tables read in the file (mapped)", need.tables),
        ("norms and biases", need.vectors),
    ]
    for kv in need.kv:
        kind = f"window of {kv.window}" if kv.window else "full"
        rows.append((f"keys and values, {kind}: {kv.n_layer} layers, {kv.n_cells} cells", kv.n_bytes))
    rows += [("activations", need.activations), ("together", need.total)]
    report.result_table([(what, n, f"{n / 2**20:.1f}") for what, n in rows], ("what", "bytes", "MiB"))


def _number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _safe(text: object) -> str:
    """One printable line of whatever a file says."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def _value(item: "Item") -> str:
    if isinstance(item.value, list):
        inside = ", ".join(_safe(repr(entry) if isinstance(entry, str) else entry) for entry in item.value)
        return f"[{inside}{', ...' if item.is_cut else ''}] ({item.n})"
    return f"{_safe(item.value)}... ({item.n} characters)" if item.is_cut else _safe(item.value)
