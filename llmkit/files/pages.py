"""Advice to the operating system about pages of a mapped file: wanted soon, or done with.

Owns the one system call. Advice never changes what is read, so failing to give it is no error. What was read through a
map counts as the process's memory until it is let go: a file of any size is walked in the memory of its largest tensor.
"""

import ctypes
import mmap
from contextlib import suppress
from typing import Any

import numpy.typing as npt


def will_need(data: npt.NDArray[Any]) -> None:
    """Start reading the pages of `data`, a view into a map, in the background."""
    _advise(data, getattr(mmap, "MADV_WILLNEED", None))


def done_with(data: npt.NDArray[Any]) -> None:
    """Let go of the whole pages of `data`, a view into a read-only map; touching them again reads them again."""
    _advise(data, getattr(mmap, "MADV_DONTNEED", None))


def _advise(data: npt.NDArray[Any], advice: int | None) -> None:
    start = -(-data.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (data.ctypes.data + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if advice is None or end <= start:
        return
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)
