"""Cutting a GGUF file into parts and joining parts, as llama-gguf-split does: the same bytes, tensors unchanged.

Owns which tensor goes into which part, and the keys. Names of parts are gguf_split's. Source: llama.cpp b11434,
tools/gguf-split.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import QuantizeError, UsageError
from ..files.atomic import finished_file, write_at
from ..files.gguf_cursor import shown
from ..files.gguf_reader import GgufFile
from ..files.gguf_split import SPLIT_COUNT, SPLIT_KEYS, SPLIT_NO, SPLIT_TENSORS, part_path
from ..files.gguf_tensors import TensorInfo
from ..files.gguf_writer import TensorShape, lay_out
from ..files.pages import done_with
from .outputs import Output

MAX_TENSORS = 128
MAX_PARTS = 900
"""All parts are open until all are complete, so that none appears without the others."""

_SLAB = 8 << 20
_ALIGNMENT = 32


@dataclass(frozen=True)
class Part(Output):
    """One file to write, and the tensors that go into it."""

    infos: list[TensorInfo]

    @property
    def n_bytes(self) -> int:
        """What llama-gguf-split calls its size: without the padding between tensors."""
        return len(self.layout.header) + sum(info.n_bytes for info in self.infos)


@dataclass(frozen=True)
class SplitLimits:
    """How much goes into a part: n_tensors, or bytes of tensors where n_bytes is not 0; empty_first: the first part
    gets the metadata and no tensor."""

    n_tensors: int = MAX_TENSORS
    n_bytes: int = 0
    empty_first: bool = False


def parse_size(text: str) -> int:
    """`128M` or `4G`, decimal, in bytes."""
    unit = {"M": 1000**2, "G": 1000**3}.get(text[-1:])
    if unit is None or not text[:-1].isdecimal() or not int(text[:-1]):
        raise UsageError(
            f"--split-max-size: invalid size {shown(text)}", "Supported units are M and G, such as 500M or 2G."
        )
    return int(text[:-1]) * unit


def split_parts(gguf: GgufFile, prefix: Path, limits: SplitLimits) -> list[Part]:
    """The parts of a file, in which tensors keep their order. QuantizeError when a part would have no tensors."""
    groups: list[list[TensorInfo]] = [[], []] if limits.empty_first else [[]]
    n_bytes = 0
    for i, info in enumerate(gguf.tensors.values()):
        size = -(-info.n_bytes // _ALIGNMENT) * _ALIGNMENT
        full = n_bytes + size > limits.n_bytes if limits.n_bytes else i and i % limits.n_tensors == 0
        if full and not groups[-1]:
            raise QuantizeError(
                "one of splits have 0 tensors: the size or tensors limit is too small",
                f"The tensor {shown(info.name)} alone takes {size} bytes.",
            )
        if full:
            groups.append([])
        n_bytes = size if full else n_bytes + size
        groups[-1].append(info)
    if len(groups) > MAX_PARTS:
        raise QuantizeError(f"{len(groups)} parts are too many; at most {MAX_PARTS} are written", "Raise the limit.")
    return [_part(gguf, prefix, groups, i) for i in range(len(groups))]


def _part(gguf: GgufFile, prefix: Path, groups: list[list[TensorInfo]], i: int) -> Part:
    metadata: dict[str, object] = {}
    if i == 0:
        metadata = {key: entry for key, entry in gguf.entries.items() if key not in SPLIT_KEYS}
    metadata[SPLIT_NO] = np.uint16(i)
    metadata[SPLIT_TENSORS] = np.int32(len(gguf.tensors))
    metadata[SPLIT_COUNT] = np.uint16(len(groups))
    layout = lay_out(metadata, [TensorShape(info.name, info.shape, info.type) for info in groups[i]])
    return Part(part_path(prefix, i + 1, len(groups)), layout, groups[i])


def merged(gguf: GgufFile, path: Path) -> Part:
    """The one file of a split model. QuantizeError when it is not split."""
    if SPLIT_COUNT not in gguf.entries:
        raise QuantizeError(f"{gguf.place}: input file does not contain {SPLIT_COUNT} metadata", "It is whole already.")
    metadata: dict[str, object] = {key: entry for key, entry in gguf.entries.items() if key != SPLIT_COUNT}
    metadata[SPLIT_COUNT] = np.uint16(0)
    infos = list(gguf.tensors.values())
    layout = lay_out(metadata, [TensorShape(info.name, info.shape, info.type) for info in infos])
    return Part(path, layout, infos)


def write_parts(
    gguf: GgufFile, parts: list[Part], on_part: Callable[[Part], None], on_bytes: Callable[[int], None]
) -> None:
    """Write all files; they appear together, when all are complete. `on_part` is told of each as it is done.

    Raises OutputError where one cannot be written.
    """
    with ExitStack() as stack:
        for part in parts:
            file = stack.enter_context(finished_file(part.path))
            file.truncate(part.layout.n_bytes)
            write_at(file, part.layout.header, 0)
            for info, offset in zip(part.infos, part.layout.offsets, strict=True):
                data = gguf.tensor_bytes(info.name)
                for start in range(0, len(data), _SLAB):
                    slab = data[start : start + _SLAB]
                    write_at(file, slab.data, offset + start)
                    on_bytes(len(slab))
                done_with(data)
            on_part(part)
