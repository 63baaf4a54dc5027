"""Calling one kernel from a test: an argument block by field names, and arrays that end in guard bytes.

Owns nothing of what a kernel computes.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def aligned(values: NDArray[Any], n_guard: int = 0) -> NDArray[Any]:
    """A copy that starts at a multiple of 64 bytes, with `n_guard` more values than can be seen after it."""
    item = values.dtype.itemsize
    memory = np.zeros(64 + values.nbytes + n_guard * item, np.uint8)
    start = -memory.ctypes.data % 64
    out = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


def address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def float_bits(value: float) -> int:
    """float32 bits, as argument blocks hold them."""
    return int(np.float32(value).view(np.uint32))


def run(kernel: Any, fields: Sequence[str], n_rows: int, n_threads: int = 1, **values: Any) -> None:
    """Runs a kernel to its end. A value is an int, or an array whose address is meant; fields left out are 0."""
    assert set(values) <= set(fields), set(values) - set(fields)
    counter, rows = np.zeros(8, np.int64), np.array([n_rows], np.int64)
    given = {**values, "counter": counter, "n_rows": rows}
    if "n_rows" not in fields:
        _run_rows(kernel, [given.get(name, 0) for name in fields], n_rows)
        return
    numbers = [given.get(name, 0) for name in fields]
    block = np.array([address(v) if isinstance(v, np.ndarray) else int(v) for v in numbers], np.int64)
    for thread in range(n_threads):
        _KERNEL(kernel.address)(address(block), thread, n_threads)


def _run_rows(kernel: Any, numbers: list[Any], n_rows: int) -> None:
    """A row kernel, eight rows at a time as `chain` calls it."""
    block = np.array([address(v) if isinstance(v, np.ndarray) else int(v) for v in numbers], np.int64)
    for first in range(0, n_rows, 8):
        _KERNEL(kernel.address)(address(block), first, min(first + 8, n_rows))
