"""What an importance matrix tells of a model's layers: how large their inputs are, how uneven, how alike.

Owns the formulas, which are those that llama.cpp b11434 (tools/imatrix, --show-statistics) uses where only sums of
squares are there. Values are E[A^2], a column's mean of squares.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .imatrix_file import Imatrix, ImatrixEntry

Doubles = NDArray[np.float64]
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
NAN = float("nan")


@dataclass(frozen=True)
class TensorStatistics:
    """Of one tensor's values. mean, deviation, skew, kurtosis (0 for a normal distribution): of the columns.

    entropy: 1 where all columns are alike, 0 where one has all. total: their sum. gain: the root of that to the total
    of the same tensor in the layer before; correlation and covariance: with its columns. NaN where there is none.
    """

    layer: int | None
    name: str
    mean: float
    deviation: float
    skew: float
    kurtosis: float
    entropy: float
    total: float
    gain: float
    correlation: float
    covariance: float


@dataclass(frozen=True)
class LayerStatistics:
    """Of all tensors of a layer together, each against the layer before."""

    layer: int
    total: float
    gain: float
    cosine: float
    correlation: float
    covariance: float


def tensor_statistics(imatrix: Imatrix) -> list[TensorStatistics]:
    """One for each entry, by layer and name; those that belong to no layer come last."""
    means = {name: _means(entry) for name, entry in imatrix.entries.items()}
    return [_of_tensor(name, means) for name in sorted(means, key=_order)]


def layer_statistics(imatrix: Imatrix) -> list[LayerStatistics]:
    """One for each layer, in order."""
    layers: dict[int, list[Doubles]] = {}
    for name in sorted(imatrix.entries, key=_order):
        if found := _LAYER.fullmatch(name):
            layers.setdefault(int(found[1]), []).append(_means(imatrix.entries[name]))
    joined = {layer: np.concatenate(parts) for layer, parts in layers.items()}
    return [_of_layer(layer, values, joined.get(layer - 1)) for layer, values in joined.items()]


def _order(name: str) -> tuple[float, str]:
    found = _LAYER.fullmatch(name)
    return (int(found[1]) if found else math.inf, name)


def _means(entry: ImatrixEntry) -> Doubles:
    """float64 [n_mat * n_per_row]; matrices that saw nothing are left as they are, 0."""
    counts = np.maximum(entry.counts.astype(np.float64), 1.0)[:, None]
    means: Doubles = (entry.sums.astype(np.float64) / counts).ravel()
    return means


def _of_tensor(name: str, means: Mapping[str, Doubles]) -> TensorStatistics:
    values, found = means[name], _LAYER.fullmatch(name)
    layer = int(found[1]) if found else None
    before = means.get(f"blk.{int(found[1]) - 1}.{found[2]}") if found else None
    mean, deviation = float(values.mean()), float(values.std())
    z = (values - mean) / deviation if deviation > 0 else np.full(1, NAN)
    return TensorStatistics(
        layer, name, mean, deviation, float((z**3).mean()), float((z**4).mean()) - 3.0, _entropy(values),
        float(values.sum()), _gain(values, before), *_alike(values, before),
    )  # fmt: skip


def _of_layer(layer: int, values: Doubles, before: Doubles | None) -> LayerStatistics:
    cosine = NAN
    if before is not None and before.size == values.size:
        norms = float(np.linalg.norm(values) * np.linalg.norm(before))
        cosine = float(values @ before) / norms if norms > 0 else NAN
    return LayerStatistics(layer, float(values.sum()), _gain(values, before), cosine, *_alike(values, before))


def _entropy(values: Doubles) -> float:
    """Shannon's, as a share of the largest possible."""
    total = values.sum()
    if total <= 0 or values.size < 2:
        return NAN
    shares = values[values > 0] / total
    return float(-(shares * np.log2(shares)).sum() / np.log2(values.size))


def _gain(values: Doubles, before: Doubles | None) -> float:
    if before is None or before.sum() <= 0:
        return NAN
    return math.sqrt(float(values.sum()) / float(before.sum()))


def _alike(values: Doubles, before: Doubles | None) -> tuple[float, float]:
    """Pearson's correlation, and the covariance."""
    if before is None or before.size != values.size:
        return NAN, NAN
    covariance = float(((values - values.mean()) * (before - before.mean())).mean())
    scale = float(values.std() * before.std())
    return covariance / scale if scale > 0 else NAN, covariance
