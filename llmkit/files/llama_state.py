"""llama.cpp's state files: sequence files (`ggsq`, version 4) and session files (`ggsn`, version 11), both ways.

Bytes to records and back; everything read is hostile. Keys and values stay rows of ggml's types. Source: llama.cpp
(src/llama-context.cpp, src/llama-kv-cache.cpp, tools/server), and files that it wrote.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmkit.files.atomic import finished_file
from llmkit.files.ggml_types import GGML_TYPES, TYPE_IDS
from llmkit.files.gguf_cursor import shown
from llmkit.files.state_errors import NotAStateError, StateDamagedError, StateTruncatedError, StateVersionError
from llmkit.files.state_file import open_regular
from llmkit.files.state_header import LLAMA_SEQUENCE, LLAMA_SESSION

VERSIONS = {LLAMA_SEQUENCE: 4, LLAMA_SESSION: 11}
NAMES = {LLAMA_SEQUENCE: "sequence", LLAMA_SESSION: "session"}
_RECORD = -1  # begins the server's list of tokens: version 1, n, the tokens, how many media parts
_MAX = 1 << 31

Rows = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class LlamaLayer:
    """One layer's rows, uint8 [n_cells][row_bytes]: all heads of K, and of V, of the types with these names."""

    type_k: str
    type_v: str
    k: Rows
    v: Rows


@dataclass(frozen=True)
class LlamaCells:
    """The cells of one memory: those of all layers, or of those with and those without a window.

    positions: int64 [n_cells]. sequences: ids in each cell. n_rot_k, n_rot_v: as in memory's layout.
    """

    positions: npt.NDArray[np.int64]
    sequences: list[tuple[int, ...]]
    layers: list[LlamaLayer]
    n_rot_k: int = 0
    n_rot_v: int = 0


@dataclass(frozen=True)
class LlamaState:
    """A file. arch: of session files. cells: one memory, or that of layers without a window and that of those with."""

    session: bool
    tokens: list[int]
    cells: list[LlamaCells]
    arch: str = ""


def llama_kind(path: str | os.PathLike[str]) -> str | None:
    """ "ggsq" or "ggsn" for a regular file that begins as one of the two kinds does, else None."""
    descriptor = open_regular(path, shown(path, 300))
    try:
        magic = os.pread(descriptor, 4, 0)
    finally:
        os.close(descriptor)
    return magic[::-1].decode() if magic in VERSIONS else None


# -- reading ------------------------------------------------------------------------------------------------------


def read_llama_state(path: str | os.PathLike[str]) -> LlamaState:
    """Reads and checks a file; NotAStateError, StateVersionError, StateTruncatedError or StateDamagedError."""
    place = shown(path, 300)
    os.close(open_regular(path, place))
    data = Path(path).read_bytes()
    reader, magic = _Reader(data[4:], place), data[:4]
    if magic not in VERSIONS:
        raise NotAStateError(f"{place}: this is no state file of llama.cpp", "give a sequence or a session file")
    version = reader.u32()
    if version != VERSIONS[magic]:
        message = f"{place}: a {NAMES[magic]} file of version {version}; {VERSIONS[magic]} is what is read"
        raise StateVersionError(message, "save it with a llama.cpp of 2026")
    tokens = _tokens(reader, reader.i32s(reader.u32()))
    arch = reader.take(reader.u32()).decode("utf-8", "replace") if magic == LLAMA_SESSION else ""
    cells = list[LlamaCells]()
    while reader.left:
        if len(cells) == 2:
            raise reader.damaged("bytes follow its end")
        cells.append(_memory(reader))
    if not cells:
        raise StateTruncatedError(f"{place}: the file ends before its memory", "copy or save it again")
    return LlamaState(magic == LLAMA_SESSION, tokens, cells, arch)


class _Reader:
    """Takes values off the front; StateTruncatedError where the file ends."""

    def __init__(self, data: bytes, place: str) -> None:
        self._data, self.place, self._at = data, place, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, n: int) -> bytes:
        if n > self.left:
            raise StateTruncatedError(f"{self.place}: the file ends before what it announces", "copy or save it again")
        self._at += n
        return self._data[self._at - n : self._at]

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def i32s(self, n: int) -> list[int]:
        values: list[int] = np.frombuffer(self.take(4 * n), "<i4").tolist()
        return values

    def rows(self, n: int, size: int) -> Rows:
        return np.frombuffer(self.take(n * size), np.uint8).reshape(n, size)

    def damaged(self, what: str) -> StateDamagedError:
        return StateDamagedError(f"{self.place}: the file is damaged, or of another llama.cpp: {what}", "save it again")


def _tokens(reader: _Reader, values: list[int]) -> list[int]:
    """The tokens of a plain list, or of the server's record of them."""
    if values[:1] == [_RECORD]:
        n = values[2] if len(values) > 2 else -1
        if values[1:2] != [1] or len(values) != n + 4 or values[-1] != 0:
            raise reader.damaged("its list of tokens is no record of text alone")
        values = values[3:-1]
    if any(token < 0 for token in values):
        raise reader.damaged("a token below 0")
    return values


def _memory(reader: _Reader) -> LlamaCells:
    """The streams of one memory, of which those that hold cells must agree."""
    n_streams = reader.u32()
    if not 0 < n_streams <= 256:
        raise reader.damaged(f"{n_streams} streams")
    parts = [part for part in (_stream(reader) for _ in range(n_streams)) if part is not None]
    if not parts:
        return LlamaCells(np.empty(0, np.int64), [], [])
    if len(parts) > 1:
        raise reader.damaged("several streams with cells: save it with --kv-unified, or one sequence alone")
    return parts[0]


def _stream(reader: _Reader) -> LlamaCells | None:
    n = reader.u32()
    if n == 0:
        return None
    if 12 * n > reader.left:
        reader.take(12 * n)
    positions, sequences = np.empty(n, np.int64), []
    for i in range(n):
        positions[i], n_ids = reader.i32s(2)
        if not 0 <= n_ids <= 256 or positions[i] < 0:
            raise reader.damaged("a cell at no position, or of too many sequences")
        sequences.append(tuple(reader.i32s(n_ids)))
    transposed, n_layers, n_rot_k, n_rot_v = (reader.u32() for _ in range(4))
    if transposed > 1 or n_layers > 1024 or max(n_rot_k, n_rot_v) >= _MAX:
        raise reader.damaged("its memory's sizes are impossible")
    keys = [_rows(reader, n) for _ in range(n_layers)]
    values = [_columns(reader, n) if transposed else _rows(reader, n) for _ in range(n_layers)]
    layers = [LlamaLayer(tk, tv, k, v) for (tk, k), (tv, v) in zip(keys, values, strict=True)]
    return LlamaCells(positions, sequences, layers, n_rot_k, n_rot_v)


def _type(reader: _Reader) -> str:
    number = reader.u32()
    if number not in GGML_TYPES:
        raise reader.damaged(f"tensor type {number}")
    return GGML_TYPES[number].name.lower()


def _rows(reader: _Reader, n: int) -> tuple[str, Rows]:
    name, size = _type(reader), reader.u64()
    if not 0 < size < _MAX:
        raise reader.damaged(f"rows of {size} bytes")
    return name, reader.rows(n, size)


def _columns(reader: _Reader, n: int) -> tuple[str, Rows]:
    """Values of a float type that lie cell by cell for each dimension, as rows."""
    name, size, width = _type(reader), reader.u32(), reader.u32()
    if not 0 < size <= 8 or not 0 < width < _MAX:
        raise reader.damaged(f"{width} values of {size} bytes")
    data = np.frombuffer(reader.take(n * size * width), np.uint8).reshape(width, n, size)
    return name, np.ascontiguousarray(data.transpose(1, 0, 2)).reshape(n, width * size)


# -- writing ------------------------------------------------------------------------------------------------------


def write_llama_state(path: str | os.PathLike[str], state: LlamaState) -> int:
    """Writes a file, values not transposed (as llama.cpp has them with flash attention); its size in bytes."""
    magic = LLAMA_SESSION if state.session else LLAMA_SEQUENCE
    parts: list[Any] = [magic, struct.pack("<II", VERSIONS[magic], len(state.tokens))]
    parts.append(np.array(state.tokens, "<i4").tobytes())
    if state.session:
        parts += [struct.pack("<I", len(state.arch.encode())), state.arch.encode()]
    for cells in state.cells:
        parts += _encoded(cells)
    with finished_file(path) as file:
        for part in parts:
            file.write(part)
    return sum(len(part) for part in parts)


def _encoded(cells: LlamaCells) -> Sequence[bytes]:
    n = len(cells.sequences)
    parts = [struct.pack("<II", 1, n)]
    if n == 0:
        return parts
    for pos, ids in zip(cells.positions.tolist(), cells.sequences, strict=True):
        parts.append(struct.pack(f"<iI{len(ids)}i", pos, len(ids), *ids))
    parts.append(struct.pack("<IIII", 0, len(cells.layers), cells.n_rot_k, cells.n_rot_v))
    pairs = [(layer.type_k, layer.k) for layer in cells.layers] + [(layer.type_v, layer.v) for layer in cells.layers]
    for name, rows in pairs:
        parts += [struct.pack("<IQ", TYPE_IDS[name.upper()], rows.shape[1]), np.ascontiguousarray(rows).tobytes()]
    return parts
