"""How `llmkit compare` shows its results: tables for people, an object for programs, a plot for both.

Owns the formats. Knows nothing of how the numbers came about.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmkit.errors import OutputError
from llmkit.evaluate.compare import ModelScore
from llmkit.evaluate.errors import MissingLibraryError
from llmkit.evaluate.tensor_errors import TensorDifference

from ._perplexity_text import kl_json

HEADERS = ("model", "MiB", "bpw", "PPL", "KL divergence", "same top", "Δp RMS", "prefill t/s", "decode t/s")
TENSOR_HEADERS = ("model", "tensor", "type", "relative error")


@dataclass
class Row:
    """What is known of one model; `differences` from the first, largest first."""

    label: str
    path: Path
    n_bytes: int
    bits_per_weight: float
    score: ModelScore
    decode_speed: float
    differences: list[TensorDifference] = field(default_factory=list)


def table(rows: list[Row]) -> list[list[str]]:
    """The models' lines under HEADERS. The first is what the others are compared with."""
    return [_line(row, is_base=i == 0) for i, row in enumerate(rows)]


def _line(row: Row, is_base: bool) -> list[str]:
    s = row.score.statistics
    against = ["-", "-", "-"]
    if not is_base:
        kld, top, rms = s.kld, s.same_top, s.p_diff_rms
        against = [
            f"{kld.mean:.6f} ± {kld.error:.6f}",
            f"{100 * top.mean:.2f} ± {100 * top.error:.2f} %",
            f"{100 * rms.mean:.3f} %",
        ]
    size, bpw = f"{row.n_bytes / 2**20:.1f}", f"{row.bits_per_weight:.2f}"
    speeds = [f"{row.score.tokens_per_second:.1f}", f"{row.decode_speed:.1f}"]
    return [row.label, size, bpw, f"{s.ppl.mean:.4f} ± {s.ppl.error:.4f}", *against, *speeds]


def tensor_table(rows: list[Row]) -> list[list[str]]:
    """The worst tensors of each model but the first, under TENSOR_HEADERS."""
    return [
        [row.label, d.name, f"{d.base_type} -> {d.type}", f"{100 * d.error:.3f} %"]
        for row in rows[1:]
        for d in row.differences
        if d.error > 0
    ]


def row_json(row: Row) -> dict[str, Any]:
    """One model as numbers."""
    s = row.score.statistics
    return {
        "name": row.label,
        "path": str(row.path),
        "bytes": row.n_bytes,
        "bits_per_weight": row.bits_per_weight,
        **(kl_json(s) if s.n else {}),
        "prefill_tokens_per_second": row.score.tokens_per_second,
        "decode_tokens_per_second": row.decode_speed,
        "worst_tensors": [
            {"name": d.name, "base_type": d.base_type, "type": d.type, "error": d.error} for d in row.differences
        ],
    }


def need_plot_library() -> None:
    """MissingLibraryError when there is none."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingLibraryError("a plot needs matplotlib", "install it: pip install matplotlib") from error


def plot(rows: list[Row], path: Path) -> None:
    """Size against KL divergence of all but the first, as an image of the kind that the file's name ends with."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for row in rows[1:]:
        size, kld = row.n_bytes / 2**20, row.score.statistics.kld
        axes.errorbar(size, kld.mean, yerr=kld.error, fmt="o", capsize=3)
        axes.annotate(row.label, (size, kld.mean), textcoords="offset points", xytext=(6, 6))
    axes.set_xlabel("size, MiB")
    axes.set_ylabel(f"KL divergence from {rows[0].label}")
    axes.set_ylim(bottom=0)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise OutputError(f"the plot cannot be written to {path}: {error}", "name a .png, .svg or .pdf file") from error
