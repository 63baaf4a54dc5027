"""llama.cpp's file of a model's log-probabilities over a text.

Layout, little-endian: `_logits_`, u32 n_ctx, i32 n_vocab, i32 n_chunk, i32 tokens[n_chunk * n_ctx] (as the text has
them, without BOS put in), then for each scored row: f32 scale, f32 lowest, u16 q[n_vocab] (padded to an even number);
log p = scale q + lowest.
"""

import os
import shutil
import struct
import tempfile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from llmkit.errors import OutputError
from llmkit.evaluate.errors import BaseFileError, NotABaseFileError, TruncatedBaseFileError
from llmkit.evaluate.windows import Windows

MAGIC = b"_logits_"
_HEADER = struct.Struct("<8sIii")
_HINT = "make it with `llmkit perplexity --save-all-logits FILE` or llama-perplexity's --kl-divergence-base"
_MAX_N_CTX, _MAX_N_VOCAB = 1 << 24, 1 << 24


def packed_columns(n_vocab: int) -> int:
    """uint16 values of a row in the file: two float32, then a value a token, an even number of them."""
    return 4 + n_vocab + n_vocab % 2


def _n_scored(n_ctx: int) -> int:
    return n_ctx - 1 - n_ctx // 2


def _file_bytes(n_ctx: int, n_vocab: int, n_chunks: int) -> int:
    rows = n_chunks * _n_scored(n_ctx)
    return _HEADER.size + 4 * n_chunks * n_ctx + rows * 2 * packed_columns(n_vocab)


class LogitsReader:
    """An open file whose header and length have been checked. BaseFileError and its subclasses when they are wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise BaseFileError(f"{path} cannot be read: {error.strerror}", _HINT) from error
        try:
            self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> None:
        header = self._file.read(_HEADER.size)
        if header[: len(MAGIC)] != MAGIC:
            raise NotABaseFileError(f"{self.path} is no file of log-probabilities", _HINT)
        if len(header) < _HEADER.size:
            raise TruncatedBaseFileError(f"{self.path} ends within its header", _HINT)
        _, self.n_ctx, self.n_vocab, self.n_chunks = _HEADER.unpack(header)
        sizes = f"n_ctx {self.n_ctx}, n_vocab {self.n_vocab}, {self.n_chunks} chunks"
        if not (4 <= self.n_ctx <= _MAX_N_CTX and 0 < self.n_vocab <= _MAX_N_VOCAB and self.n_chunks > 0):
            raise NotABaseFileError(f"{self.path} has impossible sizes: {sizes}", _HINT)
        expected, found = _file_bytes(self.n_ctx, self.n_vocab, self.n_chunks), os.fstat(self._file.fileno()).st_size
        if found != expected:
            message = f"{self.path} has {found} bytes where {sizes} need {expected}"
            raise TruncatedBaseFileError(message, "the run that wrote it did not finish; make it again")
        self.tokens: NDArray[np.int32] = np.fromfile(self._file, "<i4", self.n_chunks * self.n_ctx)
        if self.tokens.min() < 0 or self.tokens.max() >= self.n_vocab:
            raise NotABaseFileError(f"{self.path} holds token ids that its vocabulary of {self.n_vocab} has not", _HINT)

    def read_rows(self, out: NDArray[np.uint16]) -> None:
        """The next len(out) rows into out [n, at least packed_columns]."""
        columns = packed_columns(self.n_vocab)
        rows = np.fromfile(self._file, "<u2", len(out) * columns)
        if rows.size != len(out) * columns:
            raise TruncatedBaseFileError(f"{self.path} ended while it was read", _HINT)
        out[:, :columns] = rows.reshape(len(out), columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class LogitsWriter:
    """Writes under a temporary name; the file gets its own when `finish` is called, else it is removed at the end.

    OutputError when it cannot be written or would not fit on the disk.
    """

    def __init__(self, path: Path, windows: Windows, n_vocab: int) -> None:
        self._path = path
        n_bytes = _file_bytes(windows.length, n_vocab, windows.n)
        try:
            self._check_room(n_bytes)
            descriptor, self._temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=".tmp-")
            self._file: BinaryIO = os.fdopen(descriptor, "wb")
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}", "choose another place") from error
        self._write(_HEADER.pack(MAGIC, windows.length, n_vocab, windows.n))
        self._write(windows.tokens[: windows.n * windows.length].astype("<i4").tobytes())

    def _check_room(self, n_bytes: int) -> None:
        if self._path.exists() and not self._path.is_file():
            raise OutputError(f"{self._path} is no regular file", "choose another place")
        free = shutil.disk_usage(self._path.absolute().parent).free
        if free < n_bytes:
            message = f"{self._path} needs {n_bytes / 1e9:.2f} GB, and there are {free / 1e9:.2f}"
            raise OutputError(message, "take fewer --chunks, or another disk")

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise OutputError(f"{self._path} cannot be written: {error.strerror}") from error

    def write_rows(self, packed: NDArray[np.uint16]) -> None:
        """The next rows, uint16 [n, packed_columns]."""
        self._write(packed.astype("<u2", copy=False).tobytes())

    def finish(self) -> None:
        """All rows are written: the file becomes what it is called."""
        try:
            self._file.close()
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(self._temporary, 0o666 & ~mask)
            os.replace(self._temporary, self._path)
        except OSError as error:
            raise OutputError(f"{self._path} cannot be written: {error.strerror}") from error
        self._temporary = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._temporary:
            os.unlink(self._temporary)
