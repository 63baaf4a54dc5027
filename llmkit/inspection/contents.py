"""What is in a file, as plain records: metadata, tensors, and how much each tensor type takes.

Owns how long values are cut. Whatever the file says is text to be shown, never believed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from llmkit.files.ggml_types import type_name
from llmkit.files.gguf_reader import GgufFile
from llmkit.files.string_array import StringArray

SHOWN_ITEMS = 8
SHOWN_CHARS = 200


@dataclass(frozen=True)
class Item:
    """A metadata value; `n` is the length of an array or a string, of which `value` may be only the beginning."""

    key: str
    type: str
    value: object
    n: int | None = None

    @property
    def is_cut(self) -> bool:
        """Whether `value` is not all of it."""
        return isinstance(self.value, str | list) and self.n is not None and len(self.value) < self.n


@dataclass(frozen=True)
class TypeTotal:
    """All tensors of one type."""

    type: str
    n_tensors: int
    n_params: int
    n_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_bytes / self.n_params


def items(gguf: GgufFile, *, full: bool) -> list[Item]:
    """The metadata in file order; long strings and arrays whole only with `full`."""
    return [Item(key, gguf.kind(key) or "", *_shown(gguf.metadata[key], full)) for key in gguf.metadata]


def _shown(value: object, full: bool) -> tuple[object, int | None]:
    if isinstance(value, StringArray):
        n_shown = len(value) if full else min(SHOWN_ITEMS, len(value))
        return [value.bytes_at(i).decode(errors="replace") for i in range(n_shown)], len(value)
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in (value if full else value[:SHOWN_ITEMS])], len(value)
    if isinstance(value, str):
        return (value if full else value[:SHOWN_CHARS]), len(value)
    return _plain(value), None


def _plain(value: object) -> object:
    """As JSON knows it: infinities and NaN become words."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def type_totals(gguf: GgufFile) -> list[TypeTotal]:
    """Sizes by tensor type, the largest first."""
    sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for info in gguf.tensors.values():
        for i, n in enumerate((1, info.n_elements, info.n_bytes)):
            sums[info.type][i] += n
    totals = [TypeTotal(type_name(type), *numbers) for type, numbers in sums.items()]
    return sorted(totals, key=lambda total: (-total.n_bytes, total.type))
