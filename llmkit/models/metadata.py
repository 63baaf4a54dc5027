"""Typed reads of an architecture's metadata, with ranges: a file says anything it likes."""

from __future__ import annotations

import numpy as np

from llmkit.errors import MetadataError, UnsupportedError
from llmkit.files.gguf_reader import GgufFile

MAX_FLOAT32 = float(np.finfo(np.float32).max)
DAMAGED = "the file is damaged or was not written for this architecture"


class Metadata:
    """Reads of `arch.key`. Every complaint names the file, the key, what it holds and what was expected."""

    def __init__(self, gguf: GgufFile, arch: str) -> None:
        self.gguf, self.arch = gguf, arch

    def has(self, key: str) -> bool:
        return f"{self.arch}.{key}" in self.gguf.metadata

    def bad(self, key: str, value: object, expected: str) -> MetadataError:
        return MetadataError(f"{self.gguf.path}: {self.arch}.{key} is {value}; {expected} is expected", DAMAGED)

    def number(self, key: str, default: int | None = None) -> int:
        """An integer; an array whose values are all equal counts as one."""
        name = f"{self.arch}.{key}"
        if not isinstance(self.gguf.metadata.get(name), np.ndarray):
            return self.gguf.u32(name) if default is None else self.gguf.u32(name, default)
        values = self.gguf.numbers(name)
        if values.size == 0 or not np.issubdtype(values.dtype, np.integer):
            raise self.bad(key, f"an array of {values.size} of {values.dtype}", "a whole number")
        if np.any(values != values[0]):
            raise UnsupportedError(f"{self.gguf.path}: {name} differs between layers, which llmkit does not run yet")
        return int(values[0])

    def count(self, key: str, high: int, default: int | None = None, low: int = 1) -> int:
        """An integer in low .. high; the default need not be."""
        value = self.number(key, default)
        if self.has(key) or default is None:
            self.check(key, value, low, high)
        return value

    def check(self, key: str, value: int, low: int, high: int) -> None:
        """MetadataError unless value is in low .. high."""
        if not low <= value <= high:
            raise self.bad(key, value, f"a number from {low} to {high}")

    def real(self, key: str, default: float | None = None, low: float = 0.0) -> float:
        """A float of at least `low` that a float32 can hold."""
        name = f"{self.arch}.{key}"
        value = self.gguf.f32(name) if default is None else self.gguf.f32(name, default)
        if not low <= value <= MAX_FLOAT32:
            raise self.bad(key, value, f"a number from {low:g} to {MAX_FLOAT32:g}")
        return value

    def positive(self, key: str, default: float) -> float:
        """A finite float above 0; the default also where the file says 0, which means `not set`."""
        return self.real(key, default) or default

    def text(self, key: str, default: str) -> str:
        return self.gguf.str(f"{self.arch}.{key}", default)

    def flag(self, key: str, default: bool | None = None) -> bool:
        name = f"{self.arch}.{key}"
        return self.gguf.bool(name) if default is None else self.gguf.bool(name, default)

    def flags(self, key: str, n: int) -> tuple[bool, ...]:
        """An array of n numbers or truths."""
        values = self.gguf.numbers(f"{self.arch}.{key}")
        if values.size != n:
            raise self.bad(key, f"an array of {values.size}", f"one of {n}")
        return tuple(bool(value) for value in values)

    def sections(self, key: str, wanted: str) -> tuple[int, int, int, int]:
        """Four counts; zeros where they are `never` wanted, or the key `may` be missing and is."""
        if wanted == "never" or (wanted == "may" and not self.has(key)):
            return (0, 0, 0, 0)
        values = self.gguf.numbers(f"{self.arch}.{key}")
        if values.size != 4 or not np.issubdtype(values.dtype, np.integer) or np.any((values < 0) | (values > 1024)):
            raise self.bad(key, values.tolist(), "an array of four numbers from 0 to 1024")
        a, b, c, d = (int(value) for value in values)
        return a, b, c, d
