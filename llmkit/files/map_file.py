"""Maps of files that keep no file open: as many as the system has room for, not as many as a process may have open."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np
import numpy.typing as npt

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def map_file(descriptor: int, n_bytes: int) -> npt.NDArray[np.uint8]:
    """The first n_bytes bytes of an open file, uint8 and read-only; OSError where that cannot be.

    The map stays when the file is closed, and ends with the last array that looks into it.
    """
    address = _libc.mmap(None, n_bytes, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    buffer = (ctypes.c_uint8 * n_bytes).from_address(address)
    weakref.finalize(buffer, _libc.munmap, address, n_bytes).atexit = False
    data: npt.NDArray[np.uint8] = np.frombuffer(memoryview(buffer), np.uint8)
    data.flags.writeable = False
    return data
