"""What a state file says of itself, for people and programs. Needs no model and no context."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from llmkit.files.gguf_cursor import shown
from llmkit.files.state_errors import damaged
from llmkit.files.state_file import StateFile
from llmkit.files.state_header import POS, TOKEN, Header, SequenceRecord
from llmkit.memory.chain import Columns
from llmkit.memory.snapshot import first_point

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SequenceInfo:
    """A sequence of a file. first_point: the fewest tokens (besides 0) that it can be cut back to once it is loaded;
    1 without windows. logits: those of the last token, where they were saved."""

    id: int
    n_tokens: int
    pos_max: int
    first_point: int
    tokens: npt.NDArray[np.int32]
    positions: Columns
    logits: Logits | None = None


@dataclass(frozen=True)
class StateInfo:
    """What a state file says of itself. windows: of each kind of memory, 0 for all tokens. n_blocks: of each kind."""

    path: str
    format_version: int
    fingerprint: str
    model: str
    arch: str
    quantization: str
    numerics_id: str
    type_k: str
    type_v: str
    n_ctx: int
    windows: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    n_blocks: tuple[int, ...]
    rope: Mapping[str, Any]
    metadata: Mapping[str, str]
    n_bytes: int
    kv_bytes: int
    compressed: bool
    sequences: tuple[SequenceInfo, ...] = field(repr=False)

    @cached_property
    def n_tokens(self) -> dict[int, int]:
        """How many tokens each sequence has, by its id."""
        return {seq.id: seq.n_tokens for seq in self.sequences}

    @cached_property
    def tokens(self) -> dict[int, npt.NDArray[np.int32]]:
        """Token ids by sequence."""
        return {seq.id: seq.tokens for seq in self.sequences}

    @cached_property
    def points(self) -> dict[int, int]:
        """The fewest tokens that each sequence can be cut back to."""
        return {seq.id: seq.first_point for seq in self.sequences}

    @cached_property
    def logits(self) -> dict[int, Logits]:
        """Logits of the last token, of the sequences that have them in the file; empty from `read_state_info`."""
        return {seq.id: seq.logits for seq in self.sequences if seq.logits is not None}


# -- reading ------------------------------------------------------------------------------------------------------


def read_state_info(path: str | os.PathLike[str]) -> StateInfo:
    """What a file says of itself; needs no model. Its header is checked, its blocks are not (see verify_state)."""
    with StateFile(path) as file:
        return state_info(file.header, os.fspath(path), {})


def verify_state(path: str | os.PathLike[str]) -> StateInfo:
    """The same, with every checksum compared, and compressed blocks unpacked; StateDamagedError when one is wrong."""
    with StateFile(path) as file:
        file.verify(2)
        if file.header.compressed:
            for k in range(len(file.header.kinds)):
                for block in file.stored(k):
                    file.decompress(k, block)
        logits = {seq.id: file.logits(i) for i, seq in enumerate(file.header.sequences)}
        return state_info(file.header, os.fspath(path), {i: row for i, row in logits.items() if row is not None})


def state_info(header: Header, path: str, logits: Mapping[int, Logits]) -> StateInfo:
    """A header as people read it; logits: of the sequences that have them and had them read."""
    said = Said(header.description, path)
    windows = tuple(kind.window for kind in header.kinds)
    return StateInfo(
        path=path,
        format_version=header.version,
        fingerprint=said.text("model", "fingerprint"),
        model=said.text("model", "name"),
        arch=said.text("model", "arch"),
        quantization=said.text("model", "quantization"),
        numerics_id=said.text("numerics_id"),
        type_k=said.text("kv", "type_k"),
        type_v=said.text("kv", "type_v"),
        n_ctx=said.number("memory", "n_ctx"),
        windows=windows,
        layers=said.layers(),
        n_blocks=tuple(kind.blocks.size for kind in header.kinds),
        rope=said.mapping("rope"),
        metadata=said.texts(),
        n_bytes=header.n_bytes,
        kv_bytes=sum(kind.blocks.size * kind.block_bytes for kind in header.kinds),
        compressed=header.compressed,
        sequences=tuple(_sequence_info(header, seq, windows, logits) for seq in header.sequences),
    )


def _sequence_info(
    header: Header, seq: SequenceRecord, windows: tuple[int, ...], logits: Mapping[int, Logits]
) -> SequenceInfo:
    rows = header.rows(seq)
    n, positions = rows.shape[1], rows[POS]
    first = first_point(positions, seq.gone, windows)
    pos_max = int(positions[-1]) if n else -1
    return SequenceInfo(seq.id, n, pos_max, first, rows[TOKEN].astype(np.int32), positions, logits.get(seq.id))


class Said:
    """Reads a description that may hold anything; StateDamagedError for what is missing or of another type."""

    def __init__(self, description: Mapping[str, Any], path: str) -> None:
        self._description, self._path = description, shown(path, 300)

    def get(self, *names: str) -> Any:
        value: Any = self._description
        for name in names:
            if not isinstance(value, dict) or name not in value:
                raise damaged(self._path, f"its description lacks {'.'.join(names)}")
            value = value[name]
        return value

    def _typed(self, kind: type, names: tuple[str, ...]) -> Any:
        value = self.get(*names)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise damaged(self._path, f"{'.'.join(names)} is not what it should be")
        return value

    def text(self, *names: str) -> str:
        return str(self._typed(str, names))

    def number(self, *names: str) -> int:
        return int(self._typed(int, names))

    def mapping(self, *names: str) -> dict[str, Any]:
        found: dict[str, Any] = self._typed(dict, names)
        return found

    def texts(self) -> dict[str, str]:
        found = self.mapping("metadata")
        if not all(isinstance(text, str) for text in found.values()):
            raise damaged(self._path, "metadata are not texts")
        return found

    def layers(self) -> tuple[tuple[int, ...], ...]:
        found = self._typed(list, ("memory", "layers"))
        if not all(isinstance(layers, list) and all(type(i) is int for i in layers) for layers in found):
            raise damaged(self._path, "memory.layers are not numbers")
        return tuple(tuple(layers) for layers in found)
