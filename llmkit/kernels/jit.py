"""The decorators of all compiled code.

A kernel is `void(args, thread, n_threads)`: `args` is the address of its int64 argument block, and every thread of
the team calls it. A row kernel is `void(args, first_row, last_row)`. A tile computes 16 rows for a few tokens. All are
called by address from native code.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
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


class Native:
    """Native code that native code calls, loaded or compiled when its address is first wanted: a model uses a part of
    the kernels.
    """

    def __init__(self, function: Function, signature: Any) -> None:
        self._function, self._signature = function, signature
        self.__doc__ = function.__doc__

    @cached_property
    def address(self) -> int:
        """Where it is."""
        global _seconds
        began = time.perf_counter()
        types = (self._signature.args, self._signature.return_type)
        made: Any = CFunc(self._function, types, {}, {"nopython": True, "error_model": "numpy"})
        made._cache = KernelCache(self._function)
        made.compile()
        self._made = made  # the code lives as long
        _seconds += time.perf_counter() - began
        return int(made.address)


_seconds = 0.0


def loading_seconds() -> float:
    """What loading and compiling addresses has taken so far in this process."""
    return _seconds


class _LaterCache:
    """A helper's cache, made when the helper is compiled: not at all if all kernels are kept."""

    def __init__(self, function: Function) -> None:
        self._function = function

    @cached_property
    def _cache(self) -> KernelCache:
        return KernelCache(self._function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def kernel(function: Function) -> Any:
    """A plan's operation; `.address` is what the plan holds."""
    return Native(function, _KERNEL)


def row_kernel(function: Function) -> Any:
    """An operation on whole rows alone, `void(args, first_row, last_row)`: see `chain`."""
    return Native(function, _KERNEL)


def tile(function: Function) -> Any:
    """A matmul tile: `void(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)`."""
    return Native(function, _TILE)


def block(function: Function) -> Any:
    """What packs or dequantises one block: `void(source, target, row)`."""
    return Native(function, _KERNEL)


def cells(function: Function) -> Any:
    """What a KV type does to cells of one head of a block, `int64(int64 x 5)`.

    load_k(head, n_dims, first, n, target): n cells from `first` on as float32 [n_dims][32]; other columns are anything.
    load_v(head, n_dims, first, n, target): the same as float32 [n][n_dims]. Both give the address where the values are:
    `target`, or where they lie already. store_k, store_v(head, n_dims, cell, source, n_valid): float32 [n_valid] into a
    cell, zeros from there to n_dims (values only).
    """
    return Native(function, _CELLS)


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
    made._cache = _LaterCache(function)
    return made
