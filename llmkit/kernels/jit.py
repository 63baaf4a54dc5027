"""The decorators of all compiled code.

A kernel is `void(args, thread, n_threads)`: `args` is the address of its int64 argument block, and every thread of
the team calls it. A row kernel is `void(args, first_row, last_row)`. A tile computes 16 rows for a few tokens. All are
called by address from native code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types
from numba.core.ccallback import CFunc

from llmkit.kernels.kernel_cache import KernelCache
from llmkit.kernels.kernel_cache import compiled_before as compiled_before

i64, i32, f32 = types.int64, types.int32, types.float32
_KERNEL = types.void(i64, i64, i64)
_TILE = types.void(*[i64] * 8)
_CELLS = i64(*[i64] * 5)
_QUANTIZER = types.void(*[i64] * 5)

Function = Callable[..., Any]


def _compiled(function: Function, signature: Any) -> Any:
    """Native code that native code calls; `.address`."""
    made: Any = CFunc(function, (signature.args, signature.return_type), {}, {"nopython": True, "error_model": "numpy"})
    made._cache = KernelCache(function)
    made.compile()
    return made


def kernel(function: Function) -> Any:
    """A plan's operation; `.address` is what the plan holds."""
    return _compiled(function, _KERNEL)


def row_kernel(function: Function) -> Any:
    """An operation on whole rows alone, `void(args, first_row, last_row)`: see `chain`."""
    return _compiled(function, _KERNEL)


def tile(function: Function) -> Any:
    """A matmul tile: `void(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)`."""
    return _compiled(function, _TILE)


def block(function: Function) -> Any:
    """What packs or dequantises one block: `void(source, target, row)`."""
    return _compiled(function, _KERNEL)


def cells(function: Function) -> Any:
    """What a KV type does to cells of one head of a block, `int64(int64 x 5)`.

    load_k(head, n_dims, first, n, target): n cells from `first` on as float32 [n_dims][32]; other columns are anything.
    load_v(head, n_dims, first, n, target): the same as float32 [n][n_dims]. Both give the address where the values are:
    `target`, or where they lie already. store_k, store_v(head, n_dims, cell, source, n_valid): float32 [n_valid] into a
    cell, zeros from there to n_dims (values only).
    """
    return _compiled(function, _CELLS)


def entry(signature: Any) -> Callable[[Function], Any]:
    """A function that Python calls, without the GIL."""

    def decorate(function: Function) -> Any:
        made = numba.njit(nogil=True, error_model="numpy")(function)
        made._cache = KernelCache(function)
        made.compile(signature)
        made.disable_compile()
        return made

    return decorate


def quantizer(function: Function) -> Any:
    """Rows of float32 to a tensor type's bytes: `(source, target, n_rows, n_cols, importance)`, called from Python."""
    return entry(_QUANTIZER)(function)


def helper(function: Function) -> Any:
    """A function that only kernels call."""
    made = numba.njit(nogil=True, error_model="numpy", inline="never")(function)
    made._cache = KernelCache(function)
    return made
