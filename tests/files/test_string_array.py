"""The fast walk over an array of strings finds what the plain one finds."""

import random
import struct

import numpy as np
import pytest

from llmkit.errors import MetadataError, TruncatedFileError
from llmkit.files.gguf_cursor import Cursor
from llmkit.files.string_array import StringArray, find_strings


def packed(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in strings)


def found(content: bytes, count: int, start: int = 0) -> tuple[StringArray, int]:
    """The array read from `content` at `start`, and where the cursor stands then."""
    data = np.frombuffer(content, dtype=np.uint8)
    cursor = Cursor(memoryview(content), "test")
    cursor.pos = start
    return StringArray(data, find_strings(cursor, data, count), "test: key"), cursor.pos


def texts(kind: str, n: int) -> list[bytes]:
    rng = random.Random(f"{kind} {n}")
    lengths = {"short": (1, 12), "with empty": (0, 2), "around 255": (250, 262), "long": (200, 9_000)}
    if kind == "zeros inside":
        return [bytes(rng.randrange(40)) + b"x" * rng.randrange(3) for _ in range(n)]
    if kind == "lengths inside":
        return [struct.pack("<Q", rng.randrange(1, 9)) * rng.randrange(3) for _ in range(n)]
    if kind == "one long among short":
        return [b"y" * (300 if i % 1000 == 999 else 5) for i in range(n)]
    return [bytes(rng.choices(b"abcdefgh\n", k=rng.randint(*lengths[kind]))) for _ in range(n)]


@pytest.mark.parametrize("n", [0, 1, 2, 255, 256, 257, 1000, 30_000])
@pytest.mark.parametrize(
    "kind",
    ["short", "with empty", "around 255", "long", "zeros inside", "lengths inside", "one long among short"],
)
def test_all_strings_are_found(kind: str, n: int) -> None:
    strings = texts(kind, min(n, 500) if kind == "long" else n)
    content = b"\x07" * 5 + packed(strings) + b"\x01" + bytes(300)
    array, end = found(content, len(strings), start=5)
    assert end == 5 + len(packed(strings))
    assert len(array) == len(strings)
    assert array.to_bytes_list() == strings
    assert array.to_list() == [text.decode() for text in strings]
    assert list(array) == array.to_list()


@pytest.mark.parametrize("n", [1, 300, 20_000])
@pytest.mark.parametrize("n_missing", [1, 3, 8, 20])
def test_a_cut_array_is_refused(n: int, n_missing: int) -> None:
    content = packed(texts("short", n))[:-n_missing]
    with pytest.raises(TruncatedFileError):
        found(content, n)


def test_a_count_is_compared_with_the_bytes_before_anything_is_made() -> None:
    with pytest.raises(TruncatedFileError, match="announces 1000000000000 strings"):
        found(bytes(800), 10**12)


def test_items_slices_and_wrong_indices() -> None:
    array, _ = found(packed([b"a", b"", "ä".encode()]), 3)
    assert (array[0], array[1], array[-1], array[1:]) == ("a", "", "ä", ["", "ä"])
    assert array.bytes_at(2) == "ä".encode()
    with pytest.raises(IndexError):
        array[3]


def test_what_is_not_utf8_is_named_and_its_bytes_can_be_had() -> None:
    array, _ = found(packed([b"a", b"\xff", b"b"]), 3)
    assert array.to_bytes_list() == [b"a", b"\xff", b"b"]
    with pytest.raises(MetadataError, match="entry 1 is not valid UTF-8"):
        array.to_list()
    with pytest.raises(MetadataError, match="key: entry 1"):
        array[1]


def test_equality_compares_the_strings() -> None:
    first, _ = found(packed([b"a", b"b"]), 2)
    second, _ = found(b"!" + packed([b"a", b"b"]), 2, start=1)
    other, _ = found(packed([b"a", b"c"]), 2)
    assert first == second
    assert first != other
    assert first != ["a", "b"]
