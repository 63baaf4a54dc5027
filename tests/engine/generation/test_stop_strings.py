"""Stop strings: what is shown, whatever the text is cut into."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.engine.generation.stop_strings import StopStrings
from llmkit.errors import UsageError


def shown(pieces: list[str], stops: list[str], kept: list[str] | None = None) -> tuple[str, str | None]:
    """Everything that comes out, and what ended it."""
    matcher = StopStrings(stops, kept or [])
    out = []
    for piece in pieces:
        out.append(matcher.push(piece))
        if matcher.found is not None:
            break
    return "".join(out) + matcher.finish(), matcher.found


def naive(text: str, stops: list[str], kept: list[str]) -> tuple[str, str | None]:
    """The text character by character: the first end of any stop string, the longest one there."""
    for end in range(len(text) + 1):
        ending = [stop for stop in (*stops, *kept) if text[:end].endswith(stop)]
        if ending:
            found = max(ending, key=len)
            return (text[: end - len(found)] if found in stops else text[:end]), found
    return text, None


def test_the_text_ends_before_a_stop_string() -> None:
    assert shown(["one tw", "o three"], ["two"]) == ("one ", "two")
    assert shown(["one tw", "o three"], [], ["two"]) == ("one two", "two")


def test_a_stop_string_inside_one_piece() -> None:
    """Case 25."""
    assert shown(["Really", "?\n"], ["\n"]) == ("Really?", "\n")


def test_held_text_is_released_once() -> None:
    """Case 26."""
    stops = StopStrings(["\n", "Alice:"])
    assert [stops.push(" Ali"), stops.push("ce"), stops.push("!"), stops.finish()] == [" ", "", "Alice!", ""]
    stops = StopStrings(["Alice:"])
    assert [stops.push(" Ali"), stops.finish(), stops.finish()] == [" ", "Ali", ""]


def test_nothing_is_held_longer_than_needed() -> None:
    stops = StopStrings(["abcabd"])
    assert [stops.push(c) for c in "abcabcabx"] == ["", "", "", "", "", "abc", "", "", "abcabx"]
    assert StopStrings().push("text") == "text"


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("abcd", ["bcd", "c"], ("ab", "c")),
        ("abcd", ["abc", "bc", "c"], ("", "abc")),
        ("abc", ["abcd"], ("abc", None)),
        ("STOP here", ["STOP"], ("", "STOP")),
        ("aaab", ["aab"], ("a", "aab")),
        ("longer", ["longer than the text"], ("longer", None)),
        ("né", ["é"], ("n", "é")),
        ("x\ufffdy", ["\ufffd"], ("x", "\ufffd")),
        ("", ["a"], ("", None)),
    ],
)
def test_which_one_and_where(text: str, stops: list[str], expected: tuple[str, str | None]) -> None:
    """Case 27."""
    assert shown([text], stops) == expected
    assert shown(list(text), stops) == expected


def test_a_hundred_stop_strings() -> None:
    stops = [f"stop {i:03}" for i in range(100)]
    assert shown(["do not sto", "p, stop", " 0", "99 more"], stops) == ("do not stop, ", "stop 099")


def test_an_empty_stop_string_is_refused() -> None:
    for stops, kept in ((["a", ""], []), ([], [""])):
        with pytest.raises(UsageError, match="empty"):
            StopStrings(stops, kept)


def test_nothing_comes_after_the_end() -> None:
    stops = StopStrings(["b"])
    assert [stops.push("abc"), stops.push("abc"), stops.finish()] == ["a", "", ""]


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=2),
    st.integers(0, 2**32),
)
@settings(max_examples=500, deadline=None)
def test_the_pieces_do_not_matter(text: str, stops: list[str], kept: list[str], seed: int) -> None:
    cut, pieces, rest = random.Random(seed), [], text
    while rest:
        n = cut.randint(1, 6)
        pieces.append(rest[:n])
        rest = rest[n:]
    assert shown(pieces, stops, kept) == naive(text, stops, kept)
