"""The decorators of all compiled code, and where compiled code is kept.

A kernel is `void(args, thread, n_threads)`: `args` is the address of its int64 argument block, and every thread of
the team calls it. A row kernel is `void(args, first_row, last_row)`. A tile computes 16 rows for a few tokens. All are
called by address from native code.

Numba notices no edit of a callee in another file, so compiled code lives in a folder named by the hash of all sources.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.core import config

from llmkit.files.cache_dir import cache_root

_PACKAGE = Path(__file__).resolve().parent.parent
_KEEP_SECONDS = 30 * 24 * 3600


def _source_hash() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for folder in ("simd", "kernels", "quants"):
        for file in sorted((_PACKAGE / folder).glob("*.py")):
            digest.update(file.name.encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    """The folder for this version's compiled kernels; a temporary one where the cache cannot be written."""
    parent = cache_root() / "kernels"
    folder = parent / _source_hash()
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            _sweep(parent, folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return Path(tempfile.mkdtemp(prefix="llmkit-kernels-"))
    return folder


def _sweep(parent: Path, keep: Path) -> None:
    """Removes other versions' folders that are older than a month."""
    for other in parent.iterdir():
        if other != keep and other.is_dir() and time.time() - other.stat().st_mtime > _KEEP_SECONDS:
            shutil.rmtree(other, ignore_errors=True)


CACHE_FOLDER = _cache_folder()
config.CACHE_DIR = str(CACHE_FOLDER)


def compiled_before() -> bool:
    """Whether any kernel of this version has been compiled on this machine."""
    return any(CACHE_FOLDER.rglob("*.nbi"))


i64, i32, f32 = types.int64, types.int32, types.float32
_KERNEL = types.void(i64, i64, i64)
_TILE = types.void(*[i64] * 8)

Function = Callable[..., Any]


def kernel(function: Function) -> Any:
    """A plan's operation; `.address` is what the plan holds."""
    return numba.cfunc(_KERNEL, cache=True, nopython=True, error_model="numpy")(function)


def row_kernel(function: Function) -> Any:
    """An operation on whole rows alone, `void(args, first_row, last_row)`: see `chain`."""
    return numba.cfunc(_KERNEL, cache=True, nopython=True, error_model="numpy")(function)


def tile(function: Function) -> Any:
    """A matmul tile: `void(w, x, y, y_stride, n_blocks, bias, accumulate, n_tokens)`."""
    return numba.cfunc(_TILE, cache=True, nopython=True, error_model="numpy")(function)


def block(function: Function) -> Any:
    """What packs or dequantises one block: `void(source, target, row)`."""
    return numba.cfunc(_KERNEL, cache=True, nopython=True, error_model="numpy")(function)


def entry(signature: Any) -> Callable[[Function], Any]:
    """A function that Python calls, without the GIL."""
    return numba.njit(signature, cache=True, nogil=True, error_model="numpy")


def helper(function: Function) -> Any:
    """A function that only kernels call."""
    return numba.njit(cache=True, nogil=True, error_model="numpy", inline="never")(function)
