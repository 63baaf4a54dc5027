"""The metadata values of a GGUF file: their types, and how each is read.

Owns the thirteen value types, the entries read from a file, and the refusal of arrays of arrays. Knows no key.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ..errors import MetadataError
from .gguf_cursor import DAMAGED, Cursor, shown
from .string_array import StringArray, find_strings


class ValueType(IntEnum):
    """The type numbers of the GGUF specification."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


INT_TYPES = frozenset({
    ValueType.UINT8, ValueType.INT8, ValueType.UINT16, ValueType.INT16,
    ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64,
})  # fmt: skip
FLOAT_TYPES = frozenset({ValueType.FLOAT32, ValueType.FLOAT64})

FORMATS: dict[ValueType, str] = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<?",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}
"""Every type of fixed size, in the notation that both `struct` and NumPy read."""

_STRUCTS = {type: struct.Struct(format) for type, format in FORMATS.items()}


@dataclass(frozen=True)
class Entry:
    """One value as read: `kind` is its type's name (`UINT32`, `ARRAY[STRING]`), `raw` its bytes in the file without the
    type number."""

    type: ValueType
    kind: str
    value: object
    raw: memoryview


@dataclass(frozen=True)
class _Source:
    """What reading a value needs: where it stands, the file's bytes as an array, and the key for messages."""

    cursor: Cursor
    data: npt.NDArray[np.uint8]
    key: str


def read_entry(cursor: Cursor, data: npt.NDArray[np.uint8], key: str) -> Entry:
    """Read the type number and the value of `key` at the cursor; `data` is the same bytes as the cursor's.

    Strings are decoded with U+FFFD for what is not UTF-8 (only a name or a remark is ever lost to it); number arrays
    are copied, so that they are aligned, and read-only; arrays of strings stay in the file; arrays of arrays are
    refused.
    """
    source = _Source(cursor, data, key)
    type = _value_type(source)
    start = cursor.pos
    kind, value = _read_array(source) if type is ValueType.ARRAY else (type.name, _read_scalar(source, type))
    return Entry(type, kind, value, cursor.data[start : cursor.pos])


def _value_type(source: _Source) -> ValueType:
    number = source.cursor.u32(f"the type of {shown(source.key)}")
    try:
        return ValueType(number)
    except ValueError:
        message = f"{source.cursor.place}: {shown(source.key)} has the value type {number}, which does not exist"
        raise MetadataError(message, DAMAGED) from None


def _read_scalar(source: _Source, type: ValueType) -> object:
    what = shown(source.key)
    if type is ValueType.STRING:
        return source.cursor.string(what).decode(errors="replace")
    raw = source.cursor.take(_STRUCTS[type].size, what)
    if type is ValueType.BOOL and raw[0] > 1:
        raise MetadataError(f"{source.cursor.place}: {what} is a BOOL with the value {raw[0]}", DAMAGED)
    return _STRUCTS[type].unpack(raw)[0]


def _read_array(source: _Source) -> tuple[str, object]:
    cursor = source.cursor
    what = shown(source.key)
    type = _value_type(source)
    count = cursor.u64(f"the length of {what}")
    kind = f"ARRAY[{type.name}]"
    if type is ValueType.ARRAY:
        message = f"{cursor.place}: {what} is an array of arrays, which llmkit does not read"
        raise MetadataError(
            message, "No engine reads such a file (llama.cpp refuses it too): fetch another conversion."
        )
    if type is ValueType.STRING:
        return kind, StringArray(source.data, find_strings(cursor, source.data, count), f"{cursor.place}: {what}")
    dtype = np.dtype(FORMATS[type])
    cursor.need_each(count, dtype.itemsize, f"values of {what}")
    raw = cursor.take(count * dtype.itemsize, what)
    if type is ValueType.BOOL and np.frombuffer(raw, dtype=np.uint8).max(initial=0) > 1:
        raise MetadataError(f"{cursor.place}: {what} holds a BOOL that is neither 0 nor 1", DAMAGED)
    values = np.frombuffer(raw, dtype=dtype).copy()
    values.flags.writeable = False
    return kind, values
