"""`--override-kv KEY=TYPE:VALUE`: metadata laid over what a model file says.

Owns the notation, which is llama.cpp's, and what may not be overridden. Knows no key's meaning: a value that makes no
sense is refused by whoever reads it, as if the file had said it.
"""

import math
import re
import struct
from collections.abc import Callable, Iterable

from ..errors import UsageError
from .gguf_cursor import shown
from .gguf_reader import GgufFile
from .gguf_values import FLOAT_TYPES, FORMATS, INT_TYPES, Entry, ValueType

OPTION = "--override-kv"
EXAMPLE = f"Give it as in {OPTION} qwen2.context_length=int:4096; types are int, float, bool and str."

# A comma ends a value only where another KEY=TYPE: begins, so that texts may hold commas.
_NEXT = re.compile(r",(?=[^=,\s]+=(?:int|float|bool|str):)")
_FORM = re.compile(r"(?P<key>[^=\s]+)=(?P<type>[^:]*):(?P<value>.*)", re.DOTALL)
_LAYOUT_KEYS = ("general.alignment", "split.")


def parse_overrides(texts: Iterable[str]) -> dict[str, Entry]:
    """The values by key; a later one of the same key counts. Each text holds one or more, separated by commas.

    UsageError names the part that is not of the form, the type that does not exist, or the value that is none of it.
    """
    return dict(parse_override(part) for text in texts for part in _NEXT.split(text))


def parse_override(part: str) -> tuple[str, Entry]:
    """A single KEY=TYPE:VALUE; UsageError as above."""
    form = _FORM.fullmatch(part)
    if form is None:
        raise UsageError(f"{OPTION} {part!r} is not KEY=TYPE:VALUE", EXAMPLE)
    key, name, text = form["key"], form["type"], form["value"]
    if name not in _READERS:
        raise UsageError(f"{OPTION} {part!r}: there is no type {name!r}", EXAMPLE)
    type, read = _READERS[name]
    value = read(text)
    if value is None:
        raise UsageError(f"{OPTION} {part!r}: {text!r} is no {name}", EXAMPLE)
    return key, Entry(type, type.name, value, memoryview(_raw(type, value)))


def refuse_layout(key: str) -> None:
    """UsageError where the key says how the file is laid out."""
    if key.startswith(_LAYOUT_KEYS):
        raise UsageError(f"{OPTION}: {key} says how the file is laid out and cannot be overridden")


def lay_over(file: GgufFile, overrides: dict[str, Entry]) -> list[str]:
    """Puts the values in place of the file's; the keys that the file does not have.

    UsageError where the file's value is of another type, or where the key says how the file is laid out, which was
    read already.
    """
    for key, entry in overrides.items():
        refuse_layout(key)
        before = file.entries.get(key)
        if before is not None and _family(before.type) != _family(entry.type):
            message = f"{OPTION}: {shown(key)} is {before.kind} in the file, but {_family(entry.type)} is given"
            raise UsageError(message, EXAMPLE)
    new = [key for key in overrides if key not in file.entries]
    file.entries.update(overrides)
    return new


def _int(text: str) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text, re.ASCII):
        return None
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else None


def _float(text: str) -> float | None:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text, re.ASCII):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


_READERS: dict[str, tuple[ValueType, Callable[[str], object]]] = {
    "int": (ValueType.INT64, _int),
    "float": (ValueType.FLOAT64, _float),
    "bool": (ValueType.BOOL, {"true": True, "false": False}.get),
    "str": (ValueType.STRING, str),
}


def _raw(type: ValueType, value: object) -> bytes:
    """The value as a file holds it."""
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogateescape")
        return struct.pack("<Q", len(data)) + data
    return struct.pack(FORMATS[type], value)


def _family(type: ValueType) -> str:
    """Types that stand for each other: a file may hold a number in any width."""
    if type in INT_TYPES:
        return "an int"
    if type in FLOAT_TYPES:
        return "a float"
    return {ValueType.BOOL: "a bool", ValueType.STRING: "a str"}.get(type, "an array")
