"""The header of a state file from its bytes, which may be anything: every size, offset, number and sequence is checked.

Owns no file and knows no model: it says that what is written makes sense by itself.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from llmkit.files.state_errors import NotAStateError, StateTruncatedError, StateVersionError, damaged
from llmkit.files.state_header import (
    BLOCK,
    BLOCK_CELLS,
    CELL,
    COMPRESSED,
    HAS_LOGITS,
    KIND,
    LLAMA_SEQUENCE,
    LLAMA_SESSION,
    MAGIC,
    MAX_DESCRIPTION,
    MAX_HEADER,
    MAX_POS,
    MAX_TOKENS,
    NO_CELL,
    PART,
    POS,
    PREAMBLE,
    ROTATED,
    VERSION,
    Columns,
    Header,
    KindRecord,
    SequenceRecord,
    aligned,
    checksum,
    sequence_dtype,
)


class _Cursor:
    """Takes tables off the front of the header; StateDamagedError where it ends."""

    def __init__(self, data: bytes, path: str) -> None:
        self.data, self.path, self.at = data, path, 0

    def take(self, n: int) -> bytes:
        if n > len(self.data) - self.at:
            raise damaged(self.path, "a table reaches beyond the header")
        self.at += n
        return self.data[self.at - n : self.at]

    def table(self, dtype: Any, n: int) -> npt.NDArray[Any]:
        return np.frombuffer(self.take(np.dtype(dtype).itemsize * n), dtype)

    def skip_padding(self) -> None:
        if any(self.take(-self.at % 8)):
            raise damaged(self.path, "the space between two tables is not empty")


def read_preamble(data: bytes, n_bytes: int, path: str) -> int:
    """Checks the first 64 bytes of a file of n_bytes bytes; how many the header has."""
    if not data:
        raise NotAStateError(f"{path}: the file is empty", "give a file that `llmkit state save` wrote")
    if data[:8] != MAGIC[: len(data)]:
        raise NotAStateError(f"{path}: {_what_it_is(data)}", "give a file that `llmkit state save` wrote")
    if len(data) < PREAMBLE.size:
        raise StateTruncatedError(f"{path}: the state file ends within its first {PREAMBLE.size} bytes", _COPY)
    _, version, flags, total, header_bytes, *_ = PREAMBLE.unpack(data)
    if version > VERSION:
        message = f"{path}: the state file has format version {version}; this llmkit reads up to {VERSION}"
        raise StateVersionError(message, "use a newer llmkit, or save the state again with this one")
    if version < 1:
        raise StateVersionError(f"{path}: there is no format version {version}", "the file is damaged: save it again")
    if flags & ~COMPRESSED:
        raise damaged(path, f"unknown flags {flags:#x}")
    if header_bytes > min(total, MAX_HEADER) or header_bytes < PREAMBLE.size + 8:
        raise damaged(path, f"a header of {header_bytes} bytes in a file of {total}")
    if n_bytes < total:
        raise StateTruncatedError(f"{path}: the state file has {n_bytes} bytes of {total}", _COPY)
    if n_bytes > total:
        raise damaged(path, f"{n_bytes - total} bytes follow its end")
    return int(header_bytes)


_COPY = "it was cut off: copy or save it again"


def _what_it_is(data: bytes) -> str:
    """What a file that is no state file begins like."""
    known = {
        b"GGUF": "this is a model, no state file",
        LLAMA_SEQUENCE: "this is a llama.cpp sequence file, which `llmkit state convert` reads",
        LLAMA_SESSION: "this is a llama.cpp session file, which `llmkit state convert` reads",
        b"PK\x03\x04": "this is a zip archive, no state file",
        b"\x28\xb5\x2f\xfd": "this is zstd data, no state file",
        b"\x80": "this looks like a Python pickle, which is never opened",
    }
    return next((text for start, text in known.items() if data.startswith(start)), "this is no state file of llmkit")


def decode(data: bytes, path: str) -> Header:
    """The header from its bytes, `read_preamble` having been asked; StateDamagedError unless all of it makes sense."""
    if checksum(data[:-8]) != struct.unpack("<Q", data[-8:])[0]:
        raise damaged(path, "the header's checksum is wrong")
    _, version, flags, n_bytes, _, n_text, n_kinds, n_runs, n_sequences, n_parts, n_logits, zero = PREAMBLE.unpack(
        data[: PREAMBLE.size]
    )
    cursor = _Cursor(data[:-8], path)
    cursor.take(PREAMBLE.size)
    if zero or n_text > MAX_DESCRIPTION or not 1 <= n_kinds <= 64:
        raise damaged(path, "its first bytes make no sense")
    description = _description(cursor.take(n_text), path)
    cursor.skip_padding()
    kinds = cursor.table(KIND, n_kinds)
    runs = _runs(cursor, n_kinds, n_runs)
    rows = cursor.table(sequence_dtype(n_kinds), n_sequences)
    parts = cursor.table(PART, n_parts)
    if parts["zero"].any() or rows["zero"].any() or (rows["flags"] & ~np.uint32(HAS_LOGITS)).any():
        raise damaged(path, "unknown flags")
    blocks = [cursor.table(BLOCK, int(n)) for n in kinds["n_blocks"]]
    if cursor.at != len(cursor.data):
        raise damaged(path, "the header is longer than its tables")
    records = [
        KindRecord(int(k["window"]), int(k["n_layer"]), int(k["block_bytes"]), table, int(k["offset"]))
        for k, table in zip(kinds, blocks, strict=True)
    ]
    compressed = bool(flags & COMPRESSED)
    header = Header(
        description, records, runs, _sequences(rows, parts, path), int(n_logits), compressed, version, n_bytes
    )
    _check_placement(header, kinds, len(data), path)
    check_sequences(header, path)
    return header


def _description(data: bytes, path: str) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(path, "its description is no JSON") from error
    if not isinstance(value, dict):
        raise damaged(path, "its description is no JSON object")
    return value


def _runs(cursor: _Cursor, n_kinds: int, n_runs: int) -> list[Columns]:
    sizes = [int(n) for n in cursor.table("<u8", n_runs)]
    n_rows = CELL + n_kinds
    if 0 in sizes:
        raise damaged(cursor.path, "a run without tokens")
    data = cursor.table("<u4", n_rows * sum(sizes)).astype(np.int64)
    cursor.skip_padding()
    runs, at = [], 0
    for n in sizes:
        run = data[at : at + n_rows * n].reshape(n_rows, n)
        run[CELL:][run[CELL:] == NO_CELL] = -1
        runs.append(run)
        at += n_rows * n
    return runs


def _sequences(rows: npt.NDArray[Any], parts: npt.NDArray[Any], path: str) -> list[SequenceRecord]:
    """The table of sequences with their parts, which lie one behind the other."""
    if int(rows["n_parts"].sum(dtype=np.uint64)) != parts.size:
        raise damaged(path, "the sequences' parts are not those of the table")
    triples = list(zip(*(parts[name].tolist() for name in ("run", "start", "stop")), strict=True))
    found, at = [], 0
    for row in rows:
        n = int(row["n_parts"])
        gone = tuple(int(g) for g in row["gone"])
        has, n_exact = bool(row["flags"] & HAS_LOGITS), int(row["n_exact"])
        parts_of = triples[at : at + n]
        found.append(SequenceRecord(int(row["id"]), gone, parts_of, n_exact, has, int(row["logits_checksum"])))
        at += n
    if len({seq.id for seq in found}) != len(found):
        raise damaged(path, "two sequences have one id")
    for seq, n in zip(found, rows["n_tokens"], strict=True):
        if any(start >= stop for _, start, stop in seq.parts) or seq.n_tokens != n or seq.n_exact > n:
            raise damaged(path, f"sequence {seq.id} does not have the {n} tokens it should have")
    return found


def _check_placement(header: Header, kinds: npt.NDArray[Any], n_header: int, path: str) -> None:
    """Blocks follow one another without a gap or an overlap, and end where the file ends."""
    stored = [int(n) for n in kinds["n_bytes"]]
    for kind, n_bytes in zip(header.kinds, stored, strict=True):
        sizes = kind.blocks["n_bytes"]
        possible = kind.block_bytes % 64 == 0 < kind.block_bytes and kind.block_bytes * max(1, sizes.size) < 1 << 60
        if not possible or (sizes > kind.block_bytes).any():
            raise damaged(path, "a block of an impossible size")
        if not header.compressed and (sizes != kind.block_bytes).any():
            raise damaged(path, "a block of another size than the rest")
        if kind.n_bytes != n_bytes:
            raise damaged(path, "the blocks' sizes do not add up")
    n_bytes, offsets = header.n_bytes, [kind.offset for kind in header.kinds]
    if bool(header.n_logits) != bool(header.n_with_logits):
        raise damaged(path, "the logits do not add up")
    end = n_header
    for kind, offset in zip(header.kinds, offsets, strict=True):
        if offset != aligned(end):
            raise damaged(path, "blocks lie where they should not")
        end = offset + kind.n_bytes
    if header.n_with_logits:
        end = aligned(end) + 4 * header.n_logits * header.n_with_logits
    if end != n_bytes:
        raise damaged(path, "the blocks do not end where the file ends")


def check_sequences(header: Header, path: str) -> None:
    """Tokens, positions and cells are possible, and each sequence's cells its own, once."""
    for run in header.runs:
        if (run[: ROTATED + 1] >= MAX_POS).any():
            raise damaged(path, "a token or position out of range")
        for k, kind in enumerate(header.kinds):
            if (run[CELL + k] >= kind.blocks.size * BLOCK_CELLS).any():
                raise damaged(path, "a cell in a block that is not there")
    if sum(seq.n_tokens for seq in header.sequences) > MAX_TOKENS:
        raise damaged(path, f"more than {MAX_TOKENS} tokens")
    for seq in header.sequences:
        if any(run >= len(header.runs) or stop > header.runs[run].shape[1] for run, _, stop in seq.parts):
            raise damaged(path, f"sequence {seq.id} has tokens that are not there")
        rows = header.rows(seq)
        if (np.diff(rows[POS]) < 0).any():
            raise damaged(path, f"positions of sequence {seq.id} fall")
        if seq.has_logits and not seq.n_tokens:
            raise damaged(path, f"sequence {seq.id} has logits without a token")
        for k, gone in enumerate(seq.gone):
            cells = rows[CELL + k, gone:]
            if gone > seq.n_tokens or (gone and not header.kinds[k].window) or (cells < 0).any():
                raise damaged(path, f"sequence {seq.id} lacks cells")
            window = header.kinds[k].window
            if gone and rows[POS, gone - 1] >= rows[POS, -1] + 2 - window:
                raise damaged(path, f"sequence {seq.id} lacks what its next token would see through a window")
            if np.unique(cells).size != cells.size:
                raise damaged(path, f"sequence {seq.id} has two tokens in one cell")
