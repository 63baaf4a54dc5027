"""The header of a state file as records: all but the keys and values themselves. Records to bytes.

docs/state-format.md is the specification. Reading, with every check, is state_decode.py's.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

MAGIC = b"\x89LLMS\r\n\x1a"
LLAMA_SEQUENCE, LLAMA_SESSION = b"qsgg", b"nsgg"  # llama.cpp's `ggsq` and `ggsn`, little-endian words
VERSION = 1
COMPRESSED = 1  # a flag of the file
HAS_LOGITS = 1  # a flag of a sequence
PAGE = 4096
BLOCK_CELLS = 32
NO_CELL = 0xFFFFFFFF
MAX_POS = 1 << 31
MAX_HEADER = 1 << 31
MAX_DESCRIPTION = 1 << 24
MAX_TOKENS = 1 << 27  # of all sequences together: bounds what a small file can make a reader do

PREAMBLE = struct.Struct("<8sIIQQIIIIIIQ")
KIND = np.dtype([("window", "<u4"), ("n_layer", "<u4"), ("block_bytes", "<u8"), ("n_blocks", "<u8"),
                 ("offset", "<u8"), ("n_bytes", "<u8")])  # fmt: skip
PART = np.dtype([("run", "<u4"), ("start", "<u4"), ("stop", "<u4"), ("zero", "<u4")])
BLOCK = np.dtype([("n_bytes", "<u8"), ("checksum", "<u8")])

Columns = npt.NDArray[np.int64]
TOKEN, POS, ROTATED, CELL = 0, 1, 2, 3  # rows of a run, as in memory


def sequence_dtype(n_kinds: int) -> np.dtype[Any]:
    """A row of the table of sequences."""
    return np.dtype([("id", "<u4"), ("flags", "<u4"), ("n_parts", "<u4"), ("zero", "<u4"), ("n_tokens", "<u8"),
                     ("logits_checksum", "<u8"), ("n_exact", "<u8"), ("gone", "<u8", (n_kinds,))])  # fmt: skip


def checksum(data: Any) -> int:
    """XXH3, 64 bits, seed 0."""
    return xxhash.xxh3_64_intdigest(data)


def aligned(n: int, to: int = PAGE) -> int:
    """The next multiple."""
    return -(-n // to) * to


@dataclass
class KindRecord:
    """Blocks of one kind of memory: those of layers that keep the same tokens. blocks: BLOCK [n_blocks]."""

    window: int
    n_layer: int
    block_bytes: int
    blocks: npt.NDArray[Any]
    offset: int = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of the file that the blocks take."""
        return int(self.blocks["n_bytes"].sum())


@dataclass
class SequenceRecord:
    """A sequence as parts (run, start, stop) of runs. gone: of each kind, how many tokens from the first lack cells.

    n_exact: how many tokens, from the first on, hold what computing them in order gives; -1 for all.
    """

    id: int
    gone: tuple[int, ...]
    parts: list[tuple[int, int, int]]
    n_exact: int = -1
    has_logits: bool = False
    logits_checksum: int = 0

    @property
    def n_exact_or_all(self) -> int:
        return self.n_tokens if self.n_exact < 0 else self.n_exact

    @property
    def n_tokens(self) -> int:
        return sum(stop - start for _, start, stop in self.parts)


@dataclass
class Header:
    """What a file holds. runs: int64 [CELL + kinds][n]; a cell is block * 32 + place within the file, -1 for none."""

    description: dict[str, Any]
    kinds: list[KindRecord]
    runs: list[Columns]
    sequences: list[SequenceRecord]
    n_logits: int = 0
    compressed: bool = False
    version: int = VERSION
    n_bytes: int = field(default=0)

    def rows(self, seq: SequenceRecord) -> Columns:
        """The columns of a sequence's tokens, int64 [CELL + kinds][n_tokens]."""
        parts = [self.runs[run][:, start:stop] for run, start, stop in seq.parts]
        return np.concatenate(parts, axis=1) if parts else np.empty((CELL + len(self.kinds), 0), np.int64)

    # -- writing --------------------------------------------------------------------------------------------------

    def place(self) -> int:
        """Decides where everything goes; the size of the header. Block sizes are known for a file not compressed."""
        size = self._n_header_bytes(len(_json(self.description)))
        end = size
        for kind in self.kinds:
            kind.offset = aligned(end)
            end = kind.offset + kind.n_bytes
        self.n_bytes = self.logits_offset(end) + 4 * self.n_logits * self.n_with_logits if self.n_with_logits else end
        return size

    @property
    def n_with_logits(self) -> int:
        """How many sequences have the logits of their last token in the file."""
        return sum(seq.has_logits for seq in self.sequences)

    def logits_offset(self, end: int = -1) -> int:
        """Where the logits begin: behind the last block, at a page."""
        if end < 0:
            end = max((kind.offset + kind.n_bytes for kind in self.kinds), default=0)
        return aligned(end)

    def _n_header_bytes(self, n_description: int) -> int:
        n_kinds = len(self.kinds)
        cells = sum(run.shape[1] for run in self.runs) * (CELL + n_kinds)
        return (
            aligned(PREAMBLE.size + n_description, 8) + KIND.itemsize * n_kinds + 8 * len(self.runs)
            + aligned(4 * cells, 8) + sequence_dtype(n_kinds).itemsize * len(self.sequences)
            + PART.itemsize * sum(len(seq.parts) for seq in self.sequences)
            + BLOCK.itemsize * sum(kind.blocks.size for kind in self.kinds) + 8
        )  # fmt: skip

    def encode(self) -> bytes:
        """The header's bytes; `place` was called when all sizes and checksums were known."""
        text, n_kinds = _json(self.description), len(self.kinds)
        kinds = [(k.window, k.n_layer, k.block_bytes, k.blocks.size, k.offset, k.n_bytes) for k in self.kinds]
        columns = [np.where(run < 0, NO_CELL, run).astype("<u4").tobytes() for run in self.runs]
        rows = [
            (s.id, HAS_LOGITS * s.has_logits, len(s.parts), 0, s.n_tokens, s.logits_checksum, s.n_exact_or_all, s.gone)
            for s in self.sequences
        ]
        parts = [(*part, 0) for seq in self.sequences for part in seq.parts]
        size = self._n_header_bytes(len(text))
        preamble = PREAMBLE.pack(
            MAGIC, self.version, COMPRESSED * self.compressed, self.n_bytes, size, len(text), n_kinds, len(self.runs),
            len(self.sequences), len(parts), self.n_logits, 0,
        )  # fmt: skip
        data = b"".join([
            _padded(preamble + text), np.array(kinds, KIND).tobytes(),
            np.array([run.shape[1] for run in self.runs], "<u8").tobytes(), _padded(b"".join(columns)),
            np.array(rows, sequence_dtype(n_kinds)).tobytes(), np.array(parts, PART).tobytes(),
            *(kind.blocks.astype(BLOCK).tobytes() for kind in self.kinds),
        ])  # fmt: skip
        return data + struct.pack("<Q", checksum(data))


def _json(description: Mapping[str, Any]) -> bytes:
    return json.dumps(description, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
