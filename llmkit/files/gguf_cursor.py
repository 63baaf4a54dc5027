"""A reading position in hostile bytes: every step is checked against the end of the file before it is taken.

Owns the bounds check and the decoding of single little-endian numbers and strings. Knows nothing about keys, types or
tensors. All sizes here are Python integers, which do not wrap: a count of 2**63 is simply larger than what is left.
"""

import struct
from typing import cast

from ..errors import MetadataError, TruncatedFileError

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

DAMAGED = "The file is incomplete or damaged: fetch it again and compare its size and checksum with the source's."
"""The hint for everything that no writer of GGUF files would produce on purpose."""

MAX_HEADER_BYTES = 1 << 28
"""Nothing before the tensors' data may reach further into the file than this. The largest vocabularies need 13 MB; the
limit keeps a sparse file, which costs its maker nothing, from filling the memory."""


def shown(text: object, limit: int = 80) -> str:
    """`text` in quotes, control characters escaped, cut to `limit` characters: a message can hold what a hostile file
    says."""
    full = str(text)
    return repr(full if len(full) <= limit else full[: limit - 3] + "...")


class Cursor:
    """A position in `data`, the whole file; `place` is how its errors name what is being read."""

    def __init__(self, data: memoryview, place: str) -> None:
        self.data = data
        self.pos = 0
        self.place = place

    @property
    def n_left(self) -> int:
        """Bytes from the position to the end of the file."""
        return len(self.data) - self.pos

    def need(self, n_bytes: int, what: str) -> None:
        """Raise TruncatedFileError unless `n_bytes` are left, MetadataError when they reach too far into the file."""
        if n_bytes > self.n_left:
            raise TruncatedFileError(
                f"{self.place}: {what} takes {n_bytes} bytes, but only {self.n_left} follow position {self.pos}",
                DAMAGED,
            )
        if self.pos + n_bytes > MAX_HEADER_BYTES:
            raise MetadataError(
                f"{self.place}: {what} ends behind the first {MAX_HEADER_BYTES} bytes of the file", DAMAGED
            )

    def need_each(self, count: int, n_bytes: int, what: str) -> None:
        """Like `need` for `count` items of at least `n_bytes` each: called before anything of that count is made."""
        if count * n_bytes > self.n_left:
            raise TruncatedFileError(
                f"{self.place}: the file announces {count} {what}, but only {self.n_left} bytes follow", DAMAGED
            )
        self.need(count * n_bytes, f"a list of {count} {what}")

    def u32(self, what: str) -> int:
        """The next unsigned 32-bit number."""
        self.need(4, what)
        value = cast(int, _U32.unpack_from(self.data, self.pos)[0])
        self.pos += 4
        return value

    def u64(self, what: str) -> int:
        """The next unsigned 64-bit number."""
        self.need(8, what)
        value = cast(int, _U64.unpack_from(self.data, self.pos)[0])
        self.pos += 8
        return value

    def take(self, n_bytes: int, what: str) -> memoryview:
        """The next `n_bytes` bytes, not copied."""
        self.need(n_bytes, what)
        self.pos += n_bytes
        return self.data[self.pos - n_bytes : self.pos]

    def string(self, what: str) -> bytes:
        """The next string: a 64-bit length, then that many bytes."""
        n_bytes = self.u64(f"the length of {what}")
        return bytes(self.take(n_bytes, what))

    def name(self, what: str) -> str:
        """The next string as a name: not empty, valid UTF-8, at most 65,535 bytes as the format demands; else
        MetadataError."""
        n_bytes = self.u64(f"the length of {what}")
        if not 0 < n_bytes <= 65535:
            self.need(n_bytes, what)
            raise MetadataError(f"{self.place}: {what} is {n_bytes} bytes long; 1 to 65535 are allowed", DAMAGED)
        raw = bytes(self.take(n_bytes, what))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise MetadataError(f"{self.place}: {what} is not valid UTF-8: {raw[:40]!r}", DAMAGED) from None
