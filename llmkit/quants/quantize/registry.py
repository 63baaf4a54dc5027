"""Finds the quantizer of a tensor type and runs it over rows, by one or several threads.

Owns what is checked before compiled code sees an address. Whether values are finite is the caller's to ask
(kernels/finite.py): a quantizer gives some bytes for any.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmkit.errors import UnsupportedError, UsageError
from llmkit.files.ggml_types import GGML_TYPES

# What the tables of these types were made for: without weights of importance llama.cpp refuses them too.
NEEDS_IMPORTANCE = frozenset({"IQ2_XXS", "IQ2_XS", "IQ1_S"})
# Types with a file here.
TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "IQ1_M"),
    *("TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "Q2_0"),
)
_RUN_VALUES = 1 << 16  # a thread takes rows of about so many values at once


@dataclass(frozen=True)
class Quantizer:
    """One tensor type's way from float32 to bytes; calling it needs no GIL and allocates nothing."""

    name: str
    block: int  # columns
    block_bytes: int
    kernel: Any  # jit.quantizer

    def row_bytes(self, n_cols: int) -> int:
        """Bytes of a row; UsageError where n_cols is no multiple of the block."""
        if n_cols % self.block:
            raise UsageError(
                f"{self.name} holds blocks of {self.block} columns, and rows of {n_cols} do not divide into them",
                "choose a type with smaller blocks for this tensor",
            )
        return n_cols // self.block * self.block_bytes

    def __call__(
        self, rows: NDArray[np.float32], importance: NDArray[np.float32] | None, out: NDArray[np.uint8]
    ) -> None:
        """rows float32 [n_rows, n_cols] to out uint8 [n_rows, row_bytes]; importance: float32 [n_cols], none negative.

        Arrays are C-contiguous. Rows may be given in several calls, in any order and by several threads.
        """
        n_rows, n_cols = rows.shape
        _check(rows, np.float32, (n_rows, n_cols))
        _check(out, np.uint8, (n_rows, self.row_bytes(n_cols)))
        if importance is not None:
            _check(importance, np.float32, (n_cols,))
        elif self.name in NEEDS_IMPORTANCE:
            raise UsageError(f"{self.name} needs an importance matrix", "make one with `llmkit imatrix`")
        weights = 0 if importance is None else importance.ctypes.data
        self.kernel(rows.ctypes.data, out.ctypes.data, n_rows, n_cols, weights)


def _check(array: NDArray[Any], dtype: Any, shape: tuple[int, ...]) -> None:
    assert array.dtype == dtype, f"{array.dtype} for {np.dtype(dtype)}"
    assert array.shape == shape, f"{array.shape} for {shape}"
    assert array.flags.c_contiguous


@cache
def quantizer(type_id: int) -> Quantizer:
    """The quantizer of a GGML id, compiled or loaded now; UnsupportedError for a type that cannot be written."""
    found = GGML_TYPES.get(type_id)
    if found is None or found.name not in TYPES:
        name = f"type {type_id}" if found is None else found.name
        raise UnsupportedError(f"rows cannot be quantised to {name}", f"types that can: {', '.join(TYPES)}")
    module = import_module(f"llmkit.quants.quantize.{found.name.lower()}")
    return Quantizer(found.name, found.block_size, found.type_size, module.quantize)


def quantize_rows(
    type_id: int,
    rows: NDArray[np.float32],
    importance: NDArray[np.float32] | None,
    out: NDArray[np.uint8],
    n_threads: int = 1,
) -> None:
    """As Quantizer's call, the rows shared by n_threads threads; the bytes are the same with any number of them."""
    convert = quantizer(type_id)
    n_rows, n_cols = rows.shape
    convert(rows[:0], importance, out[:0])  # checks, before a thread starts
    step = max(1, _RUN_VALUES // n_cols)
    if n_threads == 1 or n_rows <= step:
        return convert(rows, importance, out)
    with ThreadPoolExecutor(n_threads) as threads:
        runs = [slice(first, first + step) for first in range(0, n_rows, step)]
        list(threads.map(lambda run: convert(rows[run], importance, out[run]), runs))
