"""How far a model's weights are from another's, tensor by tensor.

Owns the measure: the root mean square of the difference over that of the reference, both dequantised. Tensors whose
type llmkit does not run, or that only one file has in this shape, are passed over.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmkit.evaluate.rows import Stop, never
from llmkit.files.gguf_reader import GgufFile
from llmkit.files.gguf_tensors import TensorInfo
from llmkit.quants.dequantize import dequantize_blocks
from llmkit.quants.registry import TYPES, quant_type

_RUN = 1 << 16  # values compared at a time: two buffers of a thread stay in its cache


@dataclass(frozen=True)
class TensorDifference:
    """A tensor's type in the reference and in the other file, and its relative error."""

    name: str
    base_type: str
    type: str
    error: float


def tensor_differences(base: GgufFile, other: GgufFile, n_threads: int, stop: Stop = never) -> list[TensorDifference]:
    """The tensors that both files have in the same shape, in the order of `base`; fewer on `stop`."""
    pairs = [(info, other.tensors[name]) for name, info in base.tensors.items() if name in other.tensors]
    pairs = [(a, b) for a, b in pairs if a.shape == b.shape and a.type in TYPES and b.type in TYPES]
    for type_id in {info.type for pair in pairs for info in pair}:
        quant_type(type_id)  # compiled here, once, and not by each thread

    def difference(pair: tuple[TensorInfo, TensorInfo]) -> TensorDifference | None:
        if stop():
            return None
        a, b = pair
        return TensorDifference(a.name, a.type_name, b.type_name, _relative_error(base, a, other, b))

    with ThreadPoolExecutor(n_threads) as pool:
        return [done for done in pool.map(difference, pairs) if done is not None]


def _relative_error(base: GgufFile, a: TensorInfo, other: GgufFile, b: TensorInfo) -> float:
    if a.type == b.type and np.array_equal(base.tensor_bytes(a.name), other.tensor_bytes(b.name)):
        return 0.0
    square = total = 0.0
    for want, got in zip(_values(base, a), _values(other, b), strict=True):
        total += float(np.dot(want, want))
        got -= want
        square += float(np.dot(got, got))
    return math.sqrt(square / total) if total > 0 else math.inf


def _values(file: GgufFile, info: TensorInfo) -> Iterator[NDArray[np.float32]]:
    """The tensor's values, float32, a run at a time; valid until the next."""
    kind = quant_type(info.type)
    buffer = np.empty(_RUN, np.float32)
    for first in range(0, info.n_elements, _RUN):
        n = min(_RUN, info.n_elements - first)
        source = file.tensor_address(info.name) + first // kind.block * kind.block_bytes
        dequantize_blocks(
            kind.dequantize, source, kind.block_bytes, buffer.ctypes.data, 4 * kind.block, n // kind.block
        )
        yield buffer[:n]
