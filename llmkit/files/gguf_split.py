"""Split GGUF files: how the parts are named, which keys tell them, and what must fit for them to be one model.

Owns the names and the checks of one part against the first. Opens and writes nothing: gguf_reader maps the parts. The
first part holds the whole metadata, the others only the three keys and tensors of their own.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import SplitError
from .gguf_cursor import shown
from .gguf_metadata import TypedMetadata

SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"
SPLIT_KEYS = (SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS)
"""The part's number from 0, the number of parts, the tensors of all parts together."""

MAX_PARTS = 99999
_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_TOGETHER = "All parts must lie in one folder, under the names with which they were fetched, and belong to one model."


@dataclass(frozen=True)
class PartName:
    """What the name of a part says: `number` is that of the part, from 1."""

    prefix: Path
    number: int
    count: int


def part_path(prefix: Path, number: int, count: int) -> Path:
    """`<prefix>-00001-of-00003.gguf`, as llama-gguf-split names it; `number` counts from 1."""
    assert 1 <= number <= count <= MAX_PARTS
    return prefix.with_name(f"{prefix.name}-{number:05d}-of-{count:05d}.gguf")


def parse_part_name(path: Path) -> PartName | None:
    """What a part's name says, or None for any other name."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    number, count = int(found["number"]), int(found["count"])
    return PartName(path.with_name(found["prefix"]), number, count) if 1 <= number <= count else None


def other_parts(first: TypedMetadata, path: Path) -> list[Path]:
    """Where the other parts of the model whose first part is at `path` must be; empty for a file that is whole.

    SplitError when the file is another part than the first, or its name does not tell the names of the others.
    """
    count = first.u32(SPLIT_COUNT, 0)
    if count <= 1:
        return []
    number, name = first.u32(SPLIT_NO) + 1, parse_part_name(path)
    what = f"{first.place}: is part {number} of {count} of a split GGUF"
    if count > MAX_PARTS or number > count:
        raise SplitError(f"{what}, which cannot be", _TOGETHER)
    if number != 1:
        beside = f": {part_path(name.prefix, 1, count)}" if name and name.count == count else ""
        raise SplitError(f"{what}; a model is opened by its first part", f"Give the first part{beside}.")
    if name is None or (name.number, name.count) != (1, count):
        raise SplitError(
            f"{what}, but its name does not end in -00001-of-{count:05d}.gguf, so the other parts cannot be found",
            "Give all parts the names with which they were fetched.",
        )
    return [part_path(name.prefix, i, count) for i in range(2, count + 1)]


def missing_part(first: TypedMetadata, path: Path) -> SplitError:
    """What to raise where a part is not there."""
    count = first.u32(SPLIT_COUNT)
    return SplitError(f"{first.place}: part {shown(path.name)} of the {count} of this model is missing", _TOGETHER)


def check_part(first: TypedMetadata, part: TypedMetadata, number: int) -> None:
    """SplitError unless `part` is part `number` (from 1) of the model whose first part is `first`."""
    for key, expected in (
        (SPLIT_COUNT, first.u32(SPLIT_COUNT)),
        (SPLIT_NO, number - 1),
        (SPLIT_TENSORS, first.u32(SPLIT_TENSORS)),
    ):
        found = part.u32(key, None)
        if found != expected:
            says = f"{key} is {found}" if found is not None else f"{key} is missing"
            raise SplitError(f"{part.place}: is not part {number} of this model: {says}, not {expected}", _TOGETHER)
    architecture = part.str("general.architecture", None)
    if architecture is not None and architecture != first.str("general.architecture", None):
        raise SplitError(f"{part.place}: is a part of another model, of the architecture {architecture!r}", _TOGETHER)


def check_all(first: TypedMetadata, n_tensors: int) -> None:
    """SplitError unless the parts together hold as many tensors as the first announces."""
    expected = first.u32(SPLIT_TENSORS)
    if n_tensors != expected:
        message = f"{first.place}: its parts hold {n_tensors} tensors together; {expected} are announced"
        raise SplitError(message, _TOGETHER)


def doubled(part: TypedMetadata, name: str) -> SplitError:
    """What to raise where two parts hold a tensor of one name."""
    return SplitError(f"{part.place}: tensor {shown(name)} is in an earlier part too", _TOGETHER)
