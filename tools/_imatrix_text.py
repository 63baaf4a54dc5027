"""How `llmkit imatrix --show-statistics` shows its results: llama-imatrix's tables, and JSON objects for programs."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from llmkit.files.gguf_cursor import shown
from llmkit.files.imatrix_statistics import LayerStatistics, TensorStatistics


def tensor_table(path: str, rows: Sequence[TensorStatistics]) -> str:
    """A line a tensor."""
    header = (
        f"{'Layer':>6} | {'Tensor':<40} | {'Mean':>10}{'StdDev':>10}{'Skew':>12}{'Kurt':>12}{'H Norm':>9} |"
        f" {'∑ E[A²]':>14}{'Gain':>8} | {'PCC':>10}{'Cov':>10}"
    )
    lines = [
        f"{'-' if r.layer is None else r.layer:>6} | {_name(r.name):<40} | {r.mean:10.4f}{r.deviation:10.4f}"
        f"{r.skew:12.4f}{r.kurtosis:12.4f}{100 * r.entropy:8.2f}% | {r.total:14.4f}{r.gain:8.2f} |"
        f" {r.correlation:10.4f}{r.covariance:10.4f}"
        for r in rows
    ]
    return _table(f"Computing tensor statistics for {path} ({len(rows)} tensors)", header, lines)


def layer_table(path: str, rows: Sequence[LayerStatistics]) -> str:
    """A line a layer."""
    header = f"{'Layer':>6} | {'∑ E[A²]':>14}{'Gain':>8} | {'CosSim':>9}{'PCC':>9}{'Cov':>12}"
    lines = [
        f"{r.layer:>6} | {r.total:14.4f}{r.gain:8.2f} | {r.cosine:9.4f}{r.correlation:9.4f}{r.covariance:12.4f}"
        for r in rows
    ]
    return _table(f"Computing layer statistics for {path} ({len(rows)} layers)", header, lines)


def _name(name: str) -> str:
    """As it is, unless it would spoil a terminal."""
    return name if name.isprintable() else shown(name)


def _table(title: str, header: str, lines: list[str]) -> str:
    return "\n".join([title, "", header, "-" * len(header), *lines, ""])


def statistics_json(row: TensorStatistics | LayerStatistics) -> dict[str, Any]:
    """The numbers of a row; None for what is not defined."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(row).items()
    }
