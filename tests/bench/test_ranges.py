"""Lists and ranges as llama-bench reads them (parse_int_range of llama-bench.cpp)."""

import pytest

from llmkit.bench.ranges import MAX_VALUES, parse_numbers, parse_pairs, parse_words
from llmkit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("512", [512]),
        ("0", [0]),
        ("1,2,4", [1, 2, 4]),
        ("3-6", [3, 4, 5, 6]),
        ("5-5", [5]),
        ("64-256+64", [64, 128, 192, 256]),
        ("64-200+64", [64, 128, 192]),
        ("64-512*2", [64, 128, 256, 512]),
        ("64-500*2", [64, 128, 256]),
        ("1-100*10,7", [1, 10, 100, 7]),
        ("0-2", [0, 1, 2]),
    ],
)
def test_numbers(text: str, values: list[int]) -> None:
    assert parse_numbers("-p", [text]) == values


def test_an_option_given_twice_adds_up() -> None:
    assert parse_numbers("-p", ["1,2", "8-16*2"]) == [1, 2, 8, 16]
    assert parse_numbers("-p", []) == []


@pytest.mark.parametrize(
    "text", ["", "x", "1,", ",1", "-1", "1.5", "4-2", "1-4+0", "0-4*2", "1-4*1", "1-4*0", "1-2-3", "1-4/2", "1 2"]
)
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(UsageError, match=r"^-ub: "):
        parse_numbers("-ub", [text])


def test_a_slip_of_the_finger_does_not_run_for_days() -> None:
    assert len(parse_numbers("-p", [f"1-{MAX_VALUES}"])) == MAX_VALUES
    with pytest.raises(UsageError, match=str(MAX_VALUES + 1)):
        parse_numbers("-p", [f"1-{MAX_VALUES}", "5"])


def test_pairs() -> None:
    assert parse_pairs("-pg", ["512,128", "0,4"]) == [(512, 128), (0, 4)]
    for text in ("512", "1,2,3", "a,b", "1,", "-1,2"):
        with pytest.raises(UsageError, match="-pg"):
            parse_pairs("-pg", [text])


def test_words() -> None:
    meaning = {"on": "1", "off": "0"}
    assert parse_words("-fa", ["on,off", "on"], meaning) == ["1", "0", "1"]
    with pytest.raises(UsageError, match="'maybe'"):
        parse_words("-fa", ["on,maybe"], meaning)
