"""Weights of importance for the columns of each tensor, from an importance matrix.

Owns the way from collected sums to weights, the filters, and the refusal of what does not go with the model. Source:
llama.cpp b11434, tools/quantize (load_imatrix, prepare_imatrix).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import ImatrixError
from ..files.gguf_cursor import shown
from ..files.gguf_tensors import TensorInfo
from ..files.imatrix_file import Imatrix, ImatrixEntry, read_imatrix
from .options import MAX_TEXT_BYTES
from .tensor_names import TOKEN_EMBDS

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Importance:
    """weights: float32 [n_mat, n_per_row] by name of tensor in the source; metadata: the keys that tell of it."""

    weights: Mapping[str, Floats] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.weights)

    def of(self, info: TensorInfo) -> Floats | None:
        """float32 [n_mat, n_per_row] for a tensor, n_mat its third dimension; None where there are none.

        ImatrixError when the sizes differ, but for token embeddings, which no matrix is collected for.
        """
        found = self.weights.get(info.name)
        if found is None:
            return None
        n_columns, n_mat = info.shape[0], info.shape[2] if len(info.shape) > 2 else 1
        if found.size == n_columns * n_mat:
            return found.reshape(n_mat, n_columns)
        if info.name in TOKEN_EMBDS:
            return None
        message = f"imatrix size {found.size} is different from tensor size {n_columns * n_mat} for {shown(info.name)}"
        raise ImatrixError(message, "The importance matrix was made with another model.")


def load_importance(path: str, include: Sequence[str], exclude: Sequence[str]) -> tuple[Importance, Imatrix]:
    """Read a file and keep the entries whose names hold one of `include` (all, if empty) and none of `exclude`.

    Raises ImatrixError for a value that is not finite or below 0, which no mean of squares is, and what `read_imatrix`
    raises.
    """
    imatrix = read_imatrix(path)
    names = [name for name in imatrix.entries if not any(part in name for part in exclude)]
    if include:
        names = [name for name in names if any(part in name for part in include)]
    weights = {name: _weights(imatrix.entries[name], imatrix.is_legacy) for name in names}
    for name, values in weights.items():
        if not (np.isfinite(values) & (values >= 0)).all():
            what = "negative values" if np.isfinite(values).all() else "NaN or infinity"
            raise ImatrixError(
                f"{shown(path, 300)}: the importance matrix holds {what} for {shown(name)}", "Make it again."
            )
    return Importance(weights, _metadata(path, imatrix, len(weights)) if weights else {}), imatrix


def _weights(entry: ImatrixEntry, is_legacy: bool) -> Floats:
    """Mean squares; ones for a matrix that saw nothing."""
    counts = entry.counts[:, None]
    with np.errstate(all="ignore"):
        if is_legacy:
            return entry.sums / counts if counts[0, 0] > 0 else entry.sums
        return np.where(counts > 0, entry.sums / counts, np.float32(1))


def _metadata(path: str, imatrix: Imatrix, n_entries: int) -> dict[str, object]:
    keys: dict[str, object] = {"quantize.imatrix.file": path.encode(errors="replace")[:MAX_TEXT_BYTES]}
    if imatrix.datasets:
        keys["quantize.imatrix.dataset"] = imatrix.datasets[0].encode()[:MAX_TEXT_BYTES]
    keys["quantize.imatrix.entries_count"] = np.uint32(n_entries)
    if imatrix.n_chunks > 0:
        keys["quantize.imatrix.chunks_count"] = np.uint32(imatrix.n_chunks)
    return keys
