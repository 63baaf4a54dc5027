"""JSON from outside: what Python's reader takes and the standard does not."""

import json

import pytest

from llmkit.files.json_text import parse_json


@pytest.mark.parametrize("text", ["NaN", '{"a": [-Infinity]}', "1e999", "[-1e999]", "9" * 5000])
def test_what_is_no_number_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no JSON number|is too large|Exceeds the limit"):
        parse_json(text)


def test_half_surrogate_pairs_are_no_characters() -> None:
    value = parse_json(r'{"\ud800": ["a\udc00b", "\ud83e\udd99"]}')
    assert value == {"\ufffd": ["a\ufffdb", "\U0001f999"]}
    json.dumps(value, ensure_ascii=False).encode()


def test_too_deep() -> None:
    with pytest.raises(RecursionError):
        parse_json("[" * 100_000)
