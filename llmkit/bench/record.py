"""One measured case as llama-bench reports it: its fields, their order and types, and after them our own.

Fields that make no sense for us hold what llama-bench prints on a machine without a GPU, so that its tables and ours
can be joined; docs/commands/bench.md lists them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING

from llmkit import __version__
from llmkit.bench.cases import FLASH_ON
from llmkit.bench.machine import cpu_name
from llmkit.bench.model_type import model_type

if TYPE_CHECKING:
    from llmkit.bench.cases import Case
    from llmkit.bench.machine import Ceilings
    from llmkit.bench.roofline import Work
    from llmkit.models.model import Model

Value = str | int | float | bool

FIELDS: dict[str, type] = {
    "build_commit": str, "build_number": int, "cpu_info": str, "gpu_info": str, "backends": str,
    "model_filename": str, "model_type": str, "model_size": int, "model_n_params": int, "n_batch": int,
    "n_ubatch": int, "n_threads": int, "cpu_mask": str, "cpu_strict": bool, "poll": int, "type_k": str,
    "type_v": str, "n_gpu_layers": int, "n_cpu_moe": int, "split_mode": str, "main_gpu": int, "no_kv_offload": bool,
    "flash_attn": int, "devices": str, "tensor_split": str, "tensor_buft_overrides": str, "load_mode": str,
    "lazy_mode": str, "embeddings": bool, "no_op_offload": int, "no_host": bool, "repack": bool, "fit_target": int,
    "fit_min_ctx": int, "n_prompt": int, "n_gen": int, "n_depth": int, "test_time": str, "avg_ns": int,
    "stddev_ns": int, "avg_ts": float, "stddev_ts": float,
}  # fmt: skip
"""llama-bench's fields (b11434) in its order, with their types."""

_FIXED: dict[str, Value] = {
    "build_commit": __version__, "build_number": 0, "gpu_info": "", "backends": "CPU", "cpu_mask": "0x0",
    "cpu_strict": False, "poll": 50, "n_gpu_layers": -1, "n_cpu_moe": 0, "split_mode": "layer", "main_gpu": 0,
    "no_kv_offload": False, "devices": "auto", "tensor_split": "0.00", "tensor_buft_overrides": "none",
    "load_mode": "auto", "lazy_mode": "auto", "embeddings": False, "no_op_offload": 0, "no_host": False,
    "repack": True, "fit_target": 0, "fit_min_ctx": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Record:
    """`values` are llama-bench's fields; `samples_ns` and `samples_ts` (tokens a second) a value a repetition; `extra`
    our own figures.
    """

    name: str
    values: Mapping[str, Value]
    samples_ns: list[int]
    samples_ts: list[float]
    extra: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert list(self.values) == list(FIELDS), self.values


def make_record(model: Model, case: Case, samples_ns: list[int], extra: Mapping[str, Value]) -> Record:
    """The record of a case that was measured just now. avg_ns is cut to a whole number, as llama-bench does."""
    samples_ts = [1e9 * case.n_tokens / ns for ns in samples_ns]
    tensors = model.gguf.tensors.values()
    file_type = model.gguf.metadata.get("general.file_type")
    found: dict[str, Value] = {
        "cpu_info": cpu_name(),
        "model_filename": str(case.model),
        "model_type": model_type(
            model.config,
            file_type if isinstance(file_type, int) else None,
            Counter(tensor.type_name for tensor in tensors),
        ),
        "model_size": sum(tensor.n_bytes for tensor in tensors),
        "model_n_params": sum(tensor.n_elements for tensor in tensors),
        "n_batch": case.n_batch,
        "n_ubatch": case.n_ubatch,
        "n_threads": case.n_threads,
        "type_k": case.type_k,
        "type_v": case.type_v,
        "flash_attn": 1 if case.flash_attn == FLASH_ON else -1,
        "n_prompt": case.n_prompt,
        "n_gen": case.n_gen,
        "n_depth": case.n_depth,
        "test_time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": sum(samples_ns) // len(samples_ns),
        "stddev_ns": int(_deviation([float(ns) for ns in samples_ns])),
        "avg_ts": fmean(samples_ts),
        "stddev_ts": _deviation(samples_ts),
    }
    known = {**_FIXED, **found}
    return Record(case.name, {name: known[name] for name in FIELDS}, samples_ns, samples_ts, extra)


def own_figures(work: Work, ceilings: Ceilings, samples_ns: list[int]) -> dict[str, Value]:
    """What JSON gets after llama-bench's fields: the work, the ceilings, and the shares reached by the mean time."""
    seconds = sum(samples_ns) / len(samples_ns) / 1e9
    return {
        "isa": ceilings.isa,
        "memory_bytes": work.memory_bytes,
        "int8_ops": work.int8_ops,
        "f32_ops": work.f32_ops,
        "bandwidth_gb_s": round(ceilings.bandwidth_gb_s, 3),
        "int8_peak_gop_s": round(ceilings.int8_gop_s, 3),
        "f32_peak_gflop_s": round(ceilings.f32_gflop_s, 3),
        "bandwidth_share": round(work.seconds_of_memory(ceilings) / seconds, 4),
        "compute_share": round(work.seconds_of_compute(ceilings) / seconds, 4),
    }


def _deviation(values: list[float]) -> float:
    """Of a sample; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    mean = fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
