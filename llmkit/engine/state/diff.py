"""How two state files differ: in what they say of themselves, in tokens, and in the bits of keys and values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmkit.engine.common_prefix import n_common_ids
from llmkit.engine.state.info import Said, StateInfo, state_info
from llmkit.files.state_errors import damaged
from llmkit.files.state_file import StateFile
from llmkit.files.state_header import CELL, POS, TOKEN, SequenceRecord
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.cell_bytes import block_owners
from llmkit.memory.kv_layout import KvLayout

_SAID = (
    "model",
    "arch",
    "fingerprint",
    "quantization",
    "numerics_id",
    "type_k",
    "type_v",
    "rope",
    "windows",
    "metadata",
)


@dataclass(frozen=True)
class Difference:
    """What differs, and what each file has, in words."""

    what: str
    first: str
    second: str


def diff_states(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> list[Difference]:
    """All differences but those of form (compression, order of blocks); StateError for a file that cannot be used.

    Keys and values are compared as far as two sequences hold the same tokens at the same positions.
    """
    with StateFile(first) as a, StateFile(second) as b:
        a.verify(2)
        b.verify(2)
        infos = [state_info(file.header, os.fspath(path), {}) for file, path in ((a, first), (b, second))]
        found = list(_said(*infos))
        alike = not any(difference.what in ("type_k", "type_v", "windows", "arch") for difference in found)
        return found + list(_sequences(a, b, alike))


def _said(first: StateInfo, second: StateInfo) -> Iterator[Difference]:
    for name in _SAID:
        ours, theirs = getattr(first, name), getattr(second, name)
        if ours != theirs:
            yield Difference(name, _shown(ours), _shown(theirs))


def _shown(value: Any) -> str:
    text = str(dict(value)) if hasattr(value, "items") else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _sequences(a: StateFile, b: StateFile, alike: bool) -> Iterator[Difference]:
    ours, theirs = ({seq.id: seq for seq in file.header.sequences} for file in (a, b))
    for i in sorted(ours.keys() | theirs.keys()):
        if i not in ours or i not in theirs:
            yield Difference(f"sequence {i}", *("there" if i in have else "missing" for have in (ours, theirs)))
            continue
        n = _n_common(a.header.rows(ours[i]), b.header.rows(theirs[i]))
        sizes = ours[i].n_tokens, theirs[i].n_tokens
        if sizes != (n, n):
            yield Difference(f"sequence {i}, tokens", *(f"{size}, the first {n} the same" for size in sizes))
        if alike and n:
            yield from _values(a, b, ours[i], theirs[i], n)


def _n_common(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> int:
    """How many tokens, from the first on, are the same at the same positions."""
    return min(n_common_ids(a[row], b[row]) for row in (TOKEN, POS))


def _values(a: StateFile, b: StateFile, ours: SequenceRecord, theirs: SequenceRecord, n: int) -> Iterator[Difference]:
    """Of each kind of memory the tokens whose keys or values have other bits."""
    for k, kind in enumerate(a.header.kinds):
        first = max(ours.gone[k], theirs.gone[k])
        cells_a, cells_b = (file.header.rows(seq)[CELL + k, first:n].tolist() for file, seq in ((a, ours), (b, theirs)))
        from_a, from_b = _Cells(a, k), _Cells(b, k)
        pairs = enumerate(zip(cells_a, cells_b, strict=True), first)
        different = [i for i, (x, y) in pairs if not np.array_equal(from_a.bytes_of(x), from_b.bytes_of(y))]
        if different:
            where = f"sequence {ours.id}, keys and values" + (" of layers with a window" if kind.window else "")
            yield Difference(where, f"{len(different)} of {n - first} tokens differ", f"token {different[0]} first")


class _Cells:
    """The bytes of single cells of one kind of memory of a file."""

    def __init__(self, file: StateFile, k: int) -> None:
        self._file, self._k, self._blocks = file, k, list(file.stored(k))
        kind, said = file.header.kinds[k], Said(file.header.description, file.path)
        layout = KvLayout(
            kind.n_layer, said.number("kv", "n_head_kv"), said.number("kv", "head_dim"),
            said.text("kv", "type_k"), said.text("kv", "type_v"),
        )  # fmt: skip
        if layout.block_bytes != kind.block_bytes:
            raise damaged(file.path, "its blocks have another size than it says")
        owners = block_owners(layout)
        self._places = [np.flatnonzero(owners == place) for place in range(BLOCK_CELLS)]
        self._last: tuple[int, npt.NDArray[np.uint8]] = (-1, np.empty(0, np.uint8))

    def bytes_of(self, cell: int) -> npt.NDArray[np.uint8]:
        """All layers' keys and values of a cell, uint8."""
        block, place = divmod(cell, BLOCK_CELLS)
        if self._last[0] != block:
            data = self._blocks[block]
            self._last = block, self._file.decompress(self._k, data) if self._file.header.compressed else data
        return self._last[1][self._places[place]]
