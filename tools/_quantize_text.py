"""How `llmkit quantize` shows what it does: llama-quantize's lines, and the same as JSON.

Owns the formats. Decides and computes nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmkit.quantization.plan import Plan, TensorPlan

MIB = 1024 * 1024


def tensor_line(plan: "Plan", index: int, dry_run: bool) -> str:
    """`[   3/  21] token_embd.weight - [...], type = f32, ...`, as llama-quantize writes it."""
    from llmkit.quantization.options import ggml_name

    tensor = plan.tensors[index]
    info = tensor.info
    shape = ", ".join(f"{n:6d}" for n in (*info.shape, *[1] * (4 - len(info.shape))))
    start = f"[{index + 1:4d}/{plan.n_tensors:4d}] {tensor.name:<36} - [{shape}], type = {ggml_name(info.type):>6}, "
    before, after = info.n_bytes / MIB, tensor.n_bytes / MIB
    if not tensor.changes:
        return f"{start}size = {before:8.3f} MiB"
    sizes, type = f"size = {before:8.2f} MiB -> {after:8.2f} MiB", ggml_name(tensor.type)
    return f"{start}{sizes} ({type})" if dry_run else f"{start}converting to {type} .. {sizes}"


def fallback_line(tensor: "TensorPlan") -> str:
    """What became of a tensor whose rows do not fit the type it should have."""
    from llmkit.files.ggml_types import GGML_TYPES
    from llmkit.quantization.options import ggml_name

    block, wanted = GGML_TYPES[tensor.instead_of].block_size, ggml_name(tensor.instead_of)
    n = tensor.info.shape[0]
    unusual = "(WARNING: must use F16 due to unusual shape) " if ggml_name(tensor.type) == "f16" else ""
    return (
        f"{tensor.name:<36} - ncols {n:6d} not divisible by {block:3d} (required for type {wanted:>7}) "
        f"{unusual}-> falling back to {ggml_name(tensor.type):>7}"
    )


def size_lines(plan: "Plan") -> list[str]:
    """The sizes before and after, in MiB and bits per weight."""
    return [
        f"{name} = {n / MIB:8.2f} MiB ({8 * n / max(plan.n_elements, 1):.2f} BPW)"
        for name, n in (("model size ", plan.n_bytes_before), ("quant size ", plan.n_bytes_after))
    ]


def fallback_count(plan: "Plan") -> str:
    """llama-quantize's warning, with the share of the weights that it concerns."""
    n_elements = sum(tensor.info.n_elements for tensor in plan.fallbacks)
    share = 100 * n_elements / max(plan.n_elements, 1)
    return (
        f"{len(plan.fallbacks)} of {plan.n_tensors} tensor(s) required fallback quantization, "
        f"{share:.1f}% of all weights"
    )


def plan_json(plan: "Plan") -> dict[str, Any]:
    """Sizes in bytes, types as ggml spells them."""
    from llmkit.quantization.options import ggml_name

    return {
        "file_type": plan.options.file_type.name,
        "n_tensors": plan.n_tensors,
        "n_fallback": len(plan.fallbacks),
        "model_bytes": plan.n_bytes_before,
        "quant_bytes": plan.n_bytes_after,
        "model_bpw": 8 * plan.n_bytes_before / max(plan.n_elements, 1),
        "quant_bpw": 8 * plan.n_bytes_after / max(plan.n_elements, 1),
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.info.shape),
                "from": ggml_name(tensor.info.type),
                "to": ggml_name(tensor.type),
                "instead_of": ggml_name(tensor.instead_of) if tensor.instead_of >= 0 else None,
                "bytes": tensor.n_bytes,
            }
            for tensor in plan.tensors
        ],
    }
