"""How much `llmkit run` generates: none, one, what is no number of tokens."""

from typing import Any

import pytest

from tests.tools.fake_engine import FakeEngine


def test_one_token_with_its_alternatives(engine: FakeEngine, run: Any) -> None:
    result = run("-p", "hello", "-n", "1", "--temp", "0", "--json", "--logprobs", "3")
    assert result.code == 0
    (only,) = result.json["logprobs"]
    assert len(only["top_logprobs"]) == 3
    assert len(result.json["ids"]) == 1


def test_no_token_fills_the_memory_and_is_timed(engine: FakeEngine, run: Any) -> None:
    result = run("-p", "hello", "-n", "0", "--json")
    assert (result.json["ids"], result.json["text"], result.json["stop_reason"]) == ([], "", "limit")
    assert result.json["timings"]["prompt_n"] == 6
    assert len(engine.ctx.memory.sequence(0).tokens) == 6


@pytest.mark.parametrize("n", ["-2", "-2147483648"])
def test_other_negative_numbers_are_refused(n: str, engine: FakeEngine, run: Any) -> None:
    """llama.cpp's -2, until the context is full, is --ignore-eos with -1 here."""
    result = run("-p", "hello", "-n", n)
    assert (result.code, result.out) == (1, "")
    assert f"n_predict is {n}; at least -1 is expected" in result.err
    assert "--ignore-eos" in result.err


@pytest.mark.parametrize("option", ["-n", "-c", "-b", "-np"])
@pytest.mark.parametrize("n", ["1.5", "many", "", "1e3", "0x10"])
def test_what_is_no_number(option: str, n: str, engine: FakeEngine, run: Any) -> None:
    result = run("-p", "hello", option, n)
    assert result.code == 1
    assert f"{n!r} is not a whole number" in result.err
