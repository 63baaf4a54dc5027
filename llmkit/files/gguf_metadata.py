"""Metadata by key, with the type checked when it is asked for.

Owns the getters and their messages. Knows no key: which keys a model needs, and which values make sense, is for
models/ and tokenizer/.
"""

import builtins
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ..errors import MetadataError
from .gguf_cursor import shown
from .gguf_values import FLOAT_TYPES, INT_TYPES, Entry, ValueType
from .string_array import StringArray

T = TypeVar("T")


class _Required:
    """The default of a key that has none."""


REQUIRED: Final = _Required()
Str = builtins.str
Bool = builtins.bool


class MetadataView(Mapping[builtins.str, object]):
    """A mapping from key to value: numbers, bools and strings as Python's, number arrays as NumPy arrays, strings as
    StringArray."""

    def __init__(self, entries: dict[Str, Entry]) -> None:
        self.entries = entries

    def __getitem__(self, key: Str) -> object:
        return self.entries[key].value

    def __iter__(self) -> Iterator[Str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class TypedMetadata:
    """Getters over `entries`. Each takes a key and, where the key may be absent, a default; without one its absence is
    a MetadataError.

    A value of another type is always a MetadataError that names the key, the type found and the one expected.
    """

    def __init__(self, entries: dict[Str, Entry], place: Str) -> None:
        self.entries = entries
        self.place = place

    def kind(self, key: Str) -> Str | None:
        """The type of a value as the file has it, such as `UINT32` or `ARRAY[STRING]`; None for a key that is not
        there."""
        entry = self.entries.get(key)
        return entry.kind if entry else None

    @overload
    def u32(self, key: Str) -> int: ...
    @overload
    def u32(self, key: Str, default: T) -> int | T: ...
    def u32(self, key: Str, default: object = REQUIRED) -> object:
        """An integer of 0 to 2**32 - 1, stored as any integer type."""
        entry = self._entry(key, default)
        if entry is None:
            return default
        if entry.type not in INT_TYPES or not isinstance(entry.value, int):
            raise self._wrong_type(key, entry, "an unsigned integer")
        if not 0 <= entry.value < 1 << 32:
            raise MetadataError(
                f"{self.place}: {shown(key)} is {entry.value}; an unsigned 32-bit integer is expected", _HINT
            )
        return entry.value

    @overload
    def f32(self, key: Str) -> float: ...
    @overload
    def f32(self, key: Str, default: T) -> float | T: ...
    def f32(self, key: Str, default: object = REQUIRED) -> object:
        """A finite number stored as FLOAT32 or FLOAT64."""
        entry = self._entry(key, default)
        if entry is None:
            return default
        if entry.type not in FLOAT_TYPES or not isinstance(entry.value, float):
            raise self._wrong_type(key, entry, "a float")
        if not math.isfinite(entry.value):
            raise MetadataError(f"{self.place}: {shown(key)} is {entry.value}; a finite number is expected", _HINT)
        return entry.value

    @overload
    def str(self, key: Str) -> Str: ...
    @overload
    def str(self, key: Str, default: T) -> Str | T: ...
    def str(self, key: Str, default: object = REQUIRED) -> object:
        """A string."""
        return self._of_type(key, default, ValueType.STRING, "a string")

    @overload
    def bool(self, key: Str) -> Bool: ...
    @overload
    def bool(self, key: Str, default: T) -> Bool | T: ...
    def bool(self, key: Str, default: object = REQUIRED) -> object:
        """A bool."""
        return self._of_type(key, default, ValueType.BOOL, "a bool")

    @overload
    def array(self, key: Str) -> npt.NDArray[Any] | StringArray: ...
    @overload
    def array(self, key: Str, default: T) -> npt.NDArray[Any] | StringArray | T: ...
    def array(self, key: Str, default: object = REQUIRED) -> object:
        """An array of numbers (a read-only NumPy array of the file's type) or of strings (a StringArray)."""
        return self._of_class(key, default, (np.ndarray, StringArray), "an array")

    @overload
    def numbers(self, key: Str) -> npt.NDArray[Any]: ...
    @overload
    def numbers(self, key: Str, default: T) -> npt.NDArray[Any] | T: ...
    def numbers(self, key: Str, default: object = REQUIRED) -> object:
        """An array of numbers or bools, read-only, of the file's type: check `.dtype.kind` where that matters."""
        return self._of_class(key, default, (np.ndarray,), "an array of numbers")

    @overload
    def strings(self, key: Str) -> StringArray: ...
    @overload
    def strings(self, key: Str, default: T) -> StringArray | T: ...
    def strings(self, key: Str, default: object = REQUIRED) -> object:
        """An array of strings. (An empty array may have any element type: writers of merges leave it so.)"""
        entry = self._entry(key, default)
        if entry is not None and isinstance(entry.value, np.ndarray) and not len(entry.value):
            return StringArray(
                np.empty(0, dtype=np.uint8), np.array([8], dtype=np.int64), f"{self.place}: {shown(key)}"
            )
        return self._of_class(key, default, (StringArray,), "an array of strings")

    def _entry(self, key: Str, default: object) -> Entry | None:
        entry = self.entries.get(key)
        if entry is None and default is REQUIRED:
            raise MetadataError(f"{self.place}: the metadata key {shown(key)} is missing", _HINT)
        return entry

    def _of_type(self, key: Str, default: object, type: ValueType, expected: Str) -> object:
        entry = self._entry(key, default)
        if entry is not None and entry.type is not type:
            raise self._wrong_type(key, entry, expected)
        return default if entry is None else entry.value

    def _of_class(self, key: Str, default: object, classes: tuple[type, ...], expected: Str) -> object:
        entry = self._entry(key, default)
        if entry is not None and not isinstance(entry.value, classes):
            raise self._wrong_type(key, entry, expected)
        return default if entry is None else entry.value

    def _wrong_type(self, key: Str, entry: Entry, expected: Str) -> MetadataError:
        return MetadataError(f"{self.place}: {shown(key)} has the type {entry.kind}; {expected} is expected", _HINT)


_HINT = "The file does not follow the GGUF conventions: fetch another conversion of the model."
