"""Writing a GGUF file, version 3, little-endian.

Owns the layout: header, metadata, tensor table, padding, data. Knows nothing about what the keys mean nor how a block
is quantised: tensors come as raw bytes. The file appears under its name only when it is complete.
"""

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from .atomic import finished_file
from .ggml_types import row_bytes
from .gguf_reader import DEFAULT_ALIGNMENT, MAGIC
from .gguf_values import FORMATS, Entry, ValueType
from .string_array import StringArray

VERSION = 3
_TYPE_OF_DTYPE = {np.dtype(format): type for type, format in FORMATS.items()}


@dataclass(frozen=True)
class TensorData:
    """A tensor to write: `shape` in GGUF order (row length first), `type` a ggml type id.

    `data` holds exactly the bytes that type and shape demand, as any C-contiguous array; or it is a function that
    gives them, called once when their turn comes, so that a large file need not be in memory at once.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    data: npt.NDArray[Any] | Callable[[], npt.NDArray[Any]]

    @property
    def n_bytes(self) -> int:
        """Bytes that type and shape demand."""
        return row_bytes(self.type, self.shape[0]) * prod(self.shape[1:])


def write_gguf(
    path: str | os.PathLike[str], metadata: Mapping[str, object], tensors: Sequence[TensorData] = ()
) -> None:
    """Write `metadata` and `tensors`, in the given order, to `path`: to a temporary name beside it, then renamed.

    Values: an Entry of a file that was read is copied as it is; a NumPy scalar or one-dimensional array keeps its type;
    an int becomes the first of UINT32, INT32, UINT64, INT64 that holds it, a float FLOAT32, a list of strings, bools,
    ints or floats an array of STRING, BOOL, INT32 or FLOAT32. `general.alignment` (default 32) is followed.
    Raises OutputError when the disk is full or the place not writable.
    """
    layout = lay_out(metadata, [TensorShape(tensor.name, tensor.shape, tensor.type) for tensor in tensors])
    with finished_file(path) as file:
        file.write(layout.header)
        _write_data(file, tensors, layout.alignment)


class TensorShape(NamedTuple):
    """A tensor to come: `shape` in GGUF order, `type` a ggml type id."""

    name: str
    shape: tuple[int, ...]
    type: int

    @property
    def n_bytes(self) -> int:
        """Bytes that type and shape demand."""
        return row_bytes(self.type, self.shape[0]) * prod(self.shape[1:])


@dataclass(frozen=True)
class Layout:
    """Where everything of a file goes, so that it can be written in any order.

    `header`: the bytes up to the first tensor; `offsets`: of each tensor, from the file's beginning; `n_bytes`: the
    size of the file. What lies between tensors is zero.
    """

    header: bytes
    offsets: list[int]
    n_bytes: int
    alignment: int


def lay_out(metadata: Mapping[str, object], tensors: Sequence[TensorShape]) -> Layout:
    """The layout of a file with this metadata (as `write_gguf` takes it) and these tensors, in this order."""
    alignment = _alignment(metadata)
    parts = [MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    parts += [_string(key) + encode_value(value) for key, value in metadata.items()]
    offsets, end = [], 0
    for tensor in tensors:
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts.append(_string(tensor.name) + dims + struct.pack("<IQ", tensor.type, end))
        offsets.append(end)
        end += _padded(tensor.n_bytes, alignment)
    header = b"".join(parts)
    header += bytes(-len(header) % alignment)
    return Layout(header, [len(header) + offset for offset in offsets], len(header) + end, alignment)


def encode_value(value: object) -> bytes:
    """The type number and the bytes of a metadata value, as `write_gguf` describes them; TypeError for any other."""
    if isinstance(value, Entry):
        return struct.pack("<I", value.type) + value.raw
    if isinstance(value, str | bytes):
        return struct.pack("<I", ValueType.STRING) + _string(value)
    if isinstance(value, StringArray):
        return _string_array(value.to_bytes_list())
    if isinstance(value, list | tuple):
        return _encode_list(value)
    array = _typed(value)
    type = _TYPE_OF_DTYPE[array.dtype.newbyteorder("<")]
    if array.ndim == 0:
        return struct.pack("<I", type) + array.tobytes()
    return struct.pack("<IIQ", ValueType.ARRAY, type, array.size) + array.tobytes()


def _typed(value: object) -> npt.NDArray[Any]:
    if isinstance(value, np.generic | np.ndarray) and value.ndim < 2:
        return np.asarray(value)
    if isinstance(value, bool):
        return np.array(value)
    if isinstance(value, int):
        limits = (
            (np.uint32, 0, 1 << 32),
            (np.int32, -(1 << 31), 0),
            (np.uint64, 0, 1 << 64),
            (np.int64, -(1 << 63), 0),
        )
        dtype = next((dtype for dtype, low, high in limits if low <= value < high), None)
        if dtype is not None:
            return np.array(value, dtype=dtype)
    if isinstance(value, float):
        return np.array(value, dtype=np.float32)
    raise TypeError(f"no GGUF value: {value!r}")


def _encode_list(values: Sequence[object]) -> bytes:
    if all(isinstance(value, str | bytes) for value in values):
        return _string_array(values)
    types = {type(value) for value in values}
    dtype = {bool: np.bool_, int: np.int32, float: np.float32}[types.pop()] if len(types) == 1 else None
    if dtype is None:
        raise TypeError(f"no GGUF array: {values!r}")
    return encode_value(np.array(values, dtype=dtype))


def _string_array(values: Iterable[object]) -> bytes:
    texts = [_string(value) for value in values]
    return struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, len(texts)) + b"".join(texts)


def _string(value: object) -> bytes:
    raw = value if isinstance(value, bytes) else str(value).encode()
    return struct.pack("<Q", len(raw)) + raw


def _alignment(metadata: Mapping[str, object]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    value = value.value if isinstance(value, Entry) else value
    assert isinstance(value, int), value
    return value


def _padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment


def _write_data(file: BinaryIO, tensors: Sequence[TensorData], alignment: int) -> None:
    for tensor in tensors:
        data = tensor.data() if callable(tensor.data) else tensor.data
        assert data.nbytes == tensor.n_bytes, (tensor.name, data.nbytes, tensor.n_bytes)
        file.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
        file.write(bytes(-tensor.n_bytes % alignment))
