"""An array of strings that stays in the mapped file: found by offsets, decoded when asked.

Owns the walk over a GGUF array of strings (each a 64-bit length, then its bytes) and its conversion to lists. A
vocabulary holds up to a million strings, so both work on whole arrays: 262,144 strings are found in 8 ms and listed in
40 ms where loops need 45 ms and 77 ms. Knows nothing about tokens or merges.
"""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from ..errors import MetadataError
from .gguf_cursor import DAMAGED, Cursor

_WINDOW = 1 << 18
"""Bytes looked at together: small enough that the temporary arrays stay in the processor's cache."""

_SHORT_RUN = 256
_WALK = 2048
"""A window that yields less than _SHORT_RUN strings was not worth its cost: the next _WALK strings are found one by
one. So an array made to have no long runs takes at most about twice the time of the plain walk."""

_NO_RUN = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


class StringArray(Sequence[str]):
    """`n` strings inside `data`; string i is `data[starts[i] : starts[i + 1] - 8]`, as the next one's length lies
    between.

    Items and lists are decoded as UTF-8; a string that is not valid raises MetadataError with its index.
    `starts` is int64 of n + 1 entries, as `find_strings` gives it; `data` (uint8) is not copied.
    """

    def __init__(self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], place: str) -> None:
        self.data = data
        self.starts = starts
        self.place = place

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = range(len(self))[index]
        return self._decoded(self.bytes_at(i), i)

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_list())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StringArray) and self.to_bytes_list() == other.to_bytes_list()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"

    def bytes_at(self, index: int) -> bytes:
        """The raw bytes of string `index` (0 <= index < len)."""
        return self.data[self.starts[index] : self.starts[index + 1] - 8].tobytes()

    def to_bytes_list(self) -> list[bytes]:
        """All strings as raw bytes."""
        parts = self._joined().split(b"\0")[1:]
        return parts if len(parts) == len(self) else [self.bytes_at(i) for i in range(len(self))]

    def to_list(self) -> list[str]:
        """All strings as text; MetadataError names the first that is not valid UTF-8."""
        try:
            parts = self._joined().decode().split("\0")[1:]
        except UnicodeDecodeError:
            parts = []
        return parts if len(parts) == len(self) else [self._decoded(self.bytes_at(i), i) for i in range(len(self))]

    def _joined(self) -> bytes:
        """All strings, each after one zero byte: as a string may hold zeros itself, whoever splits this must count the
        parts."""
        if not len(self):
            return b""
        region = self.data[self.starts[0] - 8 : self.starts[-1] - 8].copy()
        lengths_at = self.starts[:-1] - self.starts[0]
        keep = np.ones(len(region), dtype=np.bool_)
        for k in range(1, 8):
            keep[lengths_at + k] = False
        region[lengths_at] = 0
        return region[keep].tobytes()

    def _decoded(self, raw: bytes, index: int) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise MetadataError(f"{self.place}: entry {index} is not valid UTF-8: {raw[:40]!r}", DAMAGED) from None


def find_strings(cursor: Cursor, data: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.int64]:
    """Walk `count` strings from the cursor's position, move the cursor behind them, return where each begins.

    The result has count + 1 entries: the last is 8 past the end of the last string. `data` is the same bytes as the
    cursor's. Raises TruncatedFileError when the strings do not end inside the file; allocates by `count` only after
    checking it.
    """
    cursor.need_each(count, 8, "strings")
    found: list[npt.NDArray[np.int64]] = []
    n_found = 0
    while n_found < count:
        n_wanted = count - n_found
        starts, ends = _run_of_strings(data[cursor.pos : cursor.pos + _WINDOW]) if n_wanted > _SHORT_RUN else _NO_RUN
        n = min(n_wanted, int(np.searchsorted(ends, cursor.n_left, side="right")))
        if n > _SHORT_RUN:
            found.append(starts[:n] + cursor.pos)
            cursor.pos += int(ends[n - 1])
        else:
            found.append(_walk(cursor, min(n_wanted, _WALK)))
        n_found += len(found[-1])
    found.append(np.array([cursor.pos + 8], dtype=np.int64))
    return np.concatenate(found)


def _walk(cursor: Cursor, count: int) -> npt.NDArray[np.int64]:
    """The plain way to find `count` strings: one after the other."""
    starts = []
    for _ in range(count):
        n_bytes = cursor.u64("the length of a string")
        starts.append(cursor.pos)
        cursor.need(n_bytes, "a string")
        cursor.pos += n_bytes
    return np.array(starts, dtype=np.int64)


def _run_of_strings(window: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The strings shorter than 256 bytes that follow each other from the beginning of `window`: where each starts
    and ends.

    A length below 256 is one byte and seven zeros. Every place followed by seven zeros might be one; those that are
    each exactly where the one before ends are what a walk string by string would have found, so the first gap ends the
    run.
    """
    zero = window == 0
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]
    places = np.flatnonzero(seven[1:])
    if not len(places) or places[0] != 0:
        return places[:0], places[:0]
    ends = places + 8 + window[places]
    gaps = np.flatnonzero(ends[:-1] != places[1:])
    n = int(gaps[0]) + 1 if len(gaps) else len(places)
    return places[:n] + 8, ends[:n]
