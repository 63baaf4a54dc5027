"""The tensor table of a GGUF file: read, then checked until every row of every tensor is known to lie inside the file.

Owns shapes, sizes, offsets and their rules. Knows nothing about which tensors a model needs. Follows the GGUF
specification; where ggml is laxer (no dimensions, an empty name, gaps between tensors) the first two are refused here
and gaps are allowed.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from ..errors import TensorError, TruncatedFileError, UnsupportedError
from .ggml_types import GGML_TYPES, REMOVED_TYPES, row_bytes, type_name
from .gguf_cursor import DAMAGED, Cursor, shown

MAX_DIMS = 4
_MIN_INFO_BYTES = 8 + 1 + 4 + 8 + 4 + 8
"""The least a tensor's table row takes: a name of one byte and one dimension."""


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies: `shape` in GGUF order (shape[0] is the row length), `type` a ggml type id, `offset` from the
    file's beginning. `part`: which file of a split model it lies in, from 0."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    n_bytes: int
    part: int = 0

    @property
    def n_elements(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def n_rows(self) -> int:
        """Number of rows: the product of all dimensions but the first."""
        return prod(self.shape[1:])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return row_bytes(self.type, self.shape[0])

    @property
    def type_name(self) -> str:
        """ggml's name of the type."""
        return type_name(self.type)


def read_tensors(cursor: Cursor, count: int) -> list[TensorInfo]:
    """Read `count` table rows at the cursor. The offsets are still those of the file, counted from where the tensor
    data begins.

    Raises TruncatedFileError, TensorError for a shape or name that cannot be, UnsupportedError for an unknown type.
    """
    cursor.need_each(count, _MIN_INFO_BYTES, "tensors")
    return [_read_tensor(cursor) for _ in range(count)]


def _read_tensor(cursor: Cursor) -> TensorInfo:
    name = cursor.name("a tensor's name")
    what = f"tensor {shown(name)}"
    n_dims = cursor.u32(f"the shape of {what}")
    if not 1 <= n_dims <= MAX_DIMS:
        raise TensorError(f"{cursor.place}: {what} has {n_dims} dimensions; 1 to {MAX_DIMS} are allowed", DAMAGED)
    shape = tuple(cursor.u64(f"the shape of {what}") for _ in range(n_dims))
    type = cursor.u32(f"the type of {what}")
    offset = cursor.u64(f"the offset of {what}")
    if prod(shape) == 0 or prod(shape) >= 1 << 63:
        raise TensorError(f"{cursor.place}: {what} has the shape {shape}, of {prod(shape)} values", DAMAGED)
    _check_type(cursor, what, type)
    block_size = GGML_TYPES[type].block_size
    if shape[0] % block_size:
        rows = f"has rows of {shape[0]} values, no multiple of the {block_size} in a block of {type_name(type)}"
        message = f"{cursor.place}: {what} {rows}"
        raise TensorError(message, DAMAGED)
    return TensorInfo(name, shape, type, offset, row_bytes(type, shape[0]) * prod(shape[1:]))


def _check_type(cursor: Cursor, what: str, type: int) -> None:
    if type in GGML_TYPES:
        return
    if type in REMOVED_TYPES:
        message = f"{cursor.place}: {what} has the type {REMOVED_TYPES[type]}, which ggml dropped"
        raise UnsupportedError(message, "Fetch a newer file of the model.")
    message = f"{cursor.place}: {what} has the tensor type {type}, which llmkit does not know"
    raise UnsupportedError(message, "The file is newer than this llmkit, made for another engine, or damaged.")


def place_tensors(
    infos: list[TensorInfo], place: str, data_start: int, alignment: int, n_bytes: int
) -> dict[str, TensorInfo]:
    """The tensors by name, in file order, with offsets from the file's beginning; `n_bytes` is the size of the file.

    Raises TensorError for a name given twice, an offset that is no multiple of `alignment` and for tensors that
    overlap; TruncatedFileError for one that ends behind the file.
    """
    tensors: dict[str, TensorInfo] = {}
    for info in infos:
        what = f"{place}: tensor {shown(info.name)}"
        if info.name in tensors:
            raise TensorError(f"{what} is there twice", DAMAGED)
        if info.offset % alignment:
            raise TensorError(f"{what} begins at {info.offset}, no multiple of the alignment {alignment}", DAMAGED)
        offset = data_start + info.offset
        if offset + info.n_bytes > n_bytes:
            message = f"{what} ends at byte {offset + info.n_bytes}, but the file has only {n_bytes} bytes"
            raise TruncatedFileError(message, DAMAGED)
        tensors[info.name] = TensorInfo(info.name, info.shape, info.type, offset, info.n_bytes)
    _check_overlap(tensors, place)
    return tensors


def _check_overlap(tensors: dict[str, TensorInfo], place: str) -> None:
    by_offset = sorted(tensors.values(), key=lambda info: info.offset)
    for first, second in pairwise(by_offset):
        if second.offset < first.offset + first.n_bytes:
            raise TensorError(f"{place}: tensors {shown(first.name)} and {shown(second.name)} overlap", DAMAGED)
