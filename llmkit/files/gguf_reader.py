"""Opening a GGUF file: mapped, read once, checked completely, then handed out.

Owns GgufFile and the order in which a file is checked. The bytes are hostile until then: nothing is allocated by a
count that was not compared with the bytes left, and no tensor is known that does not lie inside the file. Knows nothing
about models or tokenizers. A model split into several files is opened as one: the metadata are the first's, and each
tensor knows in which it lies. Follows https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3,
little-endian.

What is mapped must stay: where another program shortens the file in place, reading it ends the process with SIGBUS,
which cannot be caught cheaply. Programs that replace a file by renaming, as the writers here do, harm nobody.
"""

import mmap
import os
import stat
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from ..errors import (
    MetadataError,
    ModelNotFoundError,
    NotGgufError,
    TruncatedFileError,
    UnsupportedVersionError,
)
from .gguf_cursor import DAMAGED, Cursor, shown
from .gguf_metadata import MetadataView, TypedMetadata
from .gguf_sniff import sniff
from .gguf_split import check_all, check_part, doubled, missing_part, other_parts
from .gguf_tensors import TensorInfo, place_tensors, read_tensors
from .gguf_values import Entry, ValueType, read_entry

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_BYTES = 24
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
"""No writer aligns tensors to more than a page or a huge page's half; the limit keeps a wrong value from moving the
data elsewhere."""
_MIN_ENTRY_BYTES = 8 + 1 + 4 + 1


class GgufFile(TypedMetadata):
    """An opened GGUF file. `maps` holds the bytes of the file, read-only and mapped (of each part, where it is split);
    `metadata` and `tensors` are in file order.

    `metadata` is a mapping; the getters of TypedMetadata (`u32`, `f32`, `str`, `bool`, `array`, `numbers`, `strings`)
    check types.
    """

    def __init__(self, path: Path, data: npt.NDArray[np.uint8], version: int, entries: dict[str, Entry]) -> None:
        super().__init__(entries, _place(path))
        self.path = path
        self.paths = [path]
        self.version = version
        self.maps = [data]
        self.alignment = _alignment(self)
        self.metadata = MetadataView(entries)
        self.tensors: dict[str, TensorInfo] = {}

    @property
    def n_bytes(self) -> int:
        """The size of the file, of all its parts together."""
        return sum(map(len, self.maps))

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, a read-only view into the file."""
        info = self.tensors[name]
        return self.maps[info.part][info.offset : info.offset + info.n_bytes]

    def tensor_address(self, name: str) -> int:
        """The memory address of a tensor's first byte, valid while this file is open or its map is referenced."""
        info = self.tensors[name]
        return self.maps[info.part].ctypes.data + info.offset

    def join(self, part: "GgufFile") -> None:
        """Take over the tensors of the next part of a split model."""
        for info in part.tensors.values():
            if info.name in self.tensors:
                raise doubled(part, info.name)
            self.tensors[info.name] = replace(info, part=len(self.maps))
        self.maps.append(part.maps[0])
        self.paths.append(part.path)

    def close(self) -> None:
        """Let go of the file. Its pages are unmapped when the last array taken from it is gone."""
        self.maps.clear()
        self.entries.clear()
        self.tensors.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Open and check a GGUF file of version 2 or 3; vocabulary-only files (no tensors) are fine. Of a split model the
    first part is named; all must be there.

    Raises ModelNotFoundError when nothing is there, a subclass of ModelFileError when the file is no sound GGUF
    (SplitError: its parts do not belong together), UnsupportedError for tensor types that llmkit does not know.
    """
    file = _open_one(Path(path))
    others = other_parts(file, file.path)
    for number, place in enumerate(others, 2):
        try:
            part = _open_one(place)
        except ModelNotFoundError:
            raise missing_part(file, place) from None
        check_part(file, part, number)
        file.join(part)
    if others:
        check_all(file, len(file.tensors))
    return file


def _open_one(path: Path) -> GgufFile:
    """Open and check one file, whole or a part."""
    mapped = _map_file(path)
    data = np.frombuffer(mapped, dtype=np.uint8)
    cursor = Cursor(memoryview(mapped), _place(path))
    version = _read_version(cursor)
    cursor.need(16, "the header")
    n_tensors, n_entries = cursor.u64("the number of tensors"), cursor.u64("the number of metadata keys")
    cursor.need_each(n_entries, _MIN_ENTRY_BYTES, "metadata keys")
    file = GgufFile(path, data, version, _read_entries(cursor, data, n_entries))
    infos = read_tensors(cursor, n_tensors)
    data_start = -(-cursor.pos // file.alignment) * file.alignment
    file.tensors = place_tensors(infos, file.place, data_start, file.alignment, file.n_bytes)
    return file


def _place(path: Path) -> str:
    return shown(path, 300)


def _map_file(path: Path) -> mmap.mmap:
    """Map a regular file read-only. Anything else is refused before it is opened: opening a FIFO would wait for a
    writer."""
    place = _place(path)
    try:
        _check_regular(os.stat(path).st_mode, place)
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            status = os.fstat(descriptor)
            _check_regular(status.st_mode, place)
            _check_beginning(os.read(descriptor, 1024), status.st_size, place)
            return mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise ModelNotFoundError(
            f"{place}: there is no such file", "Check the path, or fetch a model with `llmkit pull`."
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NotGgufError(f"{place}: cannot be read: {reason}", "Check the path and its permissions.") from error


def _check_regular(mode: int, place: str) -> None:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO (a named pipe)", stat.S_IFSOCK: "a socket"}
    if stat.S_ISREG(mode):
        return
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    raise NotGgufError(
        f"{place}: is {kind}, not a file", "Give the path of a .gguf file; a model cannot be read from a pipe."
    )


def _check_beginning(head: bytes, n_bytes: int, place: str) -> None:
    if head.startswith(MAGIC):
        if n_bytes < HEADER_BYTES:
            raise TruncatedFileError(f"{place}: a GGUF that is cut off after {n_bytes} bytes", DAMAGED)
        return
    finding = sniff(head, n_bytes)
    raise NotGgufError(f"{place}: is not a GGUF file: it is {finding.what}", finding.hint)


def _read_version(cursor: Cursor) -> int:
    cursor.pos = len(MAGIC)
    version = cursor.u32("the version")
    if version in VERSIONS:
        return version
    if version and version & 0xFFFF == 0:
        raise NotGgufError(
            f"{cursor.place}: is a big-endian GGUF, which llmkit does not read",
            "Fetch the little-endian file, or convert it with gguf-convert-endian of the gguf package.",
        )
    hint = (
        "Fetch a newer file of the model."
        if version == 1
        else DAMAGED
        if version == 0
        else "A newer llmkit may read it."
    )
    raise UnsupportedVersionError(f"{cursor.place}: is GGUF version {version}; llmkit reads versions 2 and 3", hint)


def _read_entries(cursor: Cursor, data: npt.NDArray[np.uint8], count: int) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for _ in range(count):
        key = cursor.name("a metadata key")
        if key in entries:
            raise MetadataError(f"{cursor.place}: the metadata key {shown(key)} is there twice", DAMAGED)
        entries[key] = read_entry(cursor, data, key)
    return entries


def _alignment(file: TypedMetadata) -> int:
    """What tensor offsets are multiples of: `general.alignment`, a UINT32 power of two of 8 or more, else 32."""
    key = "general.alignment"
    kind = file.kind(key)
    if kind is None:
        return DEFAULT_ALIGNMENT
    if kind != ValueType.UINT32.name:
        raise MetadataError(f"{file.place}: {key} has the type {kind}; UINT32 is expected", DAMAGED)
    alignment = file.u32(key)
    if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise MetadataError(
            f"{file.place}: {key} is {alignment}; a power of two from 8 to {MAX_ALIGNMENT} is expected", DAMAGED
        )
    return alignment
