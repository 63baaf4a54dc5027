"""Rows of a tensor from the source's type to another, in a thread's own buffers.

Owns the two steps, to float32 and to the target, and the refusal of what is not finite, before and after. Knows nothing
of files or threads.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import QuantizeError
from ..files.ggml_types import BF16, F16, F32, GGML_TYPES
from ..files.gguf_cursor import shown
from ..quants.dequantize import dequantize_blocks
from ..quants.float_rows import bf16_to_f32, f16_to_f32
from ..quants.quantize.registry import quantizer
from ..quants.registry import TYPES, quant_type
from .options import ggml_name

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

READABLE = frozenset(TYPES)
"""The ggml types whose values are known; others, such as I32, can only be copied."""

SCALES_OVERFLOW = 10000.0
"""Scales are F16. None is larger than twice the largest weight, so below this none can have become infinite."""


def load_kernels(name: str, source: int, target: int) -> None:
    """Import what rows of these ggml types need, and so compile it, in this thread.

    QuantizeError names a tensor whose type is only ever copied, UnsupportedError a type that cannot be made.
    """
    if source in READABLE and source not in (F32, F16, BF16):
        quant_type(source)
    if source not in READABLE and source != target:
        raise QuantizeError(
            f"cannot dequantize/convert tensor type {ggml_name(source)}: tensor {shown(name)}",
            "It is no matrix of weights: COPY leaves it as it is.",
        )
    if target != source:
        quantizer(target)


class Converter:
    """One thread's buffers, which grow to the largest chunk it has seen; what it returns is valid until the next."""

    def __init__(self) -> None:
        self._floats: dict[str, Floats] = {}
        self._out = np.empty(0, np.uint8)

    def convert(
        self, name: str, rows: Bytes, source: int, target: int, n_columns: int, weights: Floats | None
    ) -> Bytes:
        """rows: uint8 [n_rows, bytes of a row] of the ggml type `source`, to the same of `target`.

        weights: float32 [n_columns] of importance. Raises QuantizeError for a weight that is NaN or infinite, or
        becomes so. Where the types are equal, the rows themselves are checked and returned.
        """
        if source == target and source not in READABLE:
            return rows
        values = self._to_floats("in", rows, source, n_columns)
        largest = check_finite(name, values)
        if source == target:
            return rows
        out = self._to_target(values, target, weights)
        if largest >= SCALES_OVERFLOW and target != F32:
            what = f"as {ggml_name(target)}, whose largest scale is 65504, "
            check_finite(name, self._to_floats("out", out, target, n_columns), what)
        return out

    def _to_floats(self, buffer: str, rows: Bytes, type: int, n_columns: int) -> Floats:
        """float32 [n_rows, n_columns]."""
        if type == F32 and rows.ctypes.data % 4 == 0:
            return rows.view(np.float32)
        n = len(rows) * n_columns
        if self._floats.get(buffer, _EMPTY).size < n:
            self._floats[buffer] = np.empty(n, np.float32)
        out = self._floats[buffer][:n].reshape(-1, n_columns)
        source, target = rows.ctypes.data, out.ctypes.data
        if type == F32:
            out.view(np.uint8)[:] = rows
        elif type == F16:
            f16_to_f32(source, target, n)
        elif type == BF16:
            bf16_to_f32(source, target, n)
        else:
            t = quant_type(type)
            dequantize_blocks(t.dequantize, source, t.block_bytes, target, 4 * t.block, n // t.block)
        return out

    def _to_target(self, values: Floats, type: int, weights: Floats | None) -> Bytes:
        known = GGML_TYPES[type]
        n_rows, n_columns = values.shape
        n_bytes = n_rows * n_columns // known.block_size * known.type_size
        if self._out.size < n_bytes:
            self._out = np.empty(n_bytes, np.uint8)
        out = self._out[:n_bytes].reshape(n_rows, -1)
        quantizer(type)(values, weights, out)
        return out


_EMPTY = np.empty(0, np.float32)


def check_finite(name: str, values: NDArray[Any], how: str = "") -> float:
    """The largest magnitude; QuantizeError when a value is NaN or infinite."""
    if not values.size:
        return 0.0
    largest = max(float(values.max()), -float(values.min()))
    if np.isfinite(largest):
        return largest
    wrong = values[~np.isfinite(values)][0]
    raise QuantizeError(
        f"tensor {shown(name)}: holds {wrong} {how}and cannot be quantised".replace("  ", " "),
        "The model is damaged, or was trained or converted with an overflow: convert it again, to BF16 or F32.",
    )
