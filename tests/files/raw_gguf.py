"""Builds GGUF files byte by byte, with nothing checked: what a broken or hostile writer might make."""

import struct
from collections.abc import Sequence

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
Q4_0 = 2


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, type: int, raw: bytes) -> bytes:
    """One metadata entry; `raw` is the value without its type number."""
    return string(key) + struct.pack("<I", type) + raw


def array(type: int, count: int, raw: bytes) -> bytes:
    """The value of an ARRAY entry."""
    return struct.pack("<IQ", type, count) + raw


def tensor(name: str | bytes = "a", dims: Sequence[int] = (8,), type: int = 0, offset: int = 0) -> bytes:
    """One row of the tensor table."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type, offset)


def gguf(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    n_data: int = 0,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_entries: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file with `n_data` bytes of tensor data; the two counts are the true ones unless given."""
    n_entries = len(entries) if n_entries is None else n_entries
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    head = magic + struct.pack("<IQQ", version, n_tensors, n_entries) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + bytes(n_data)
