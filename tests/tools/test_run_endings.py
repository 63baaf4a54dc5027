"""`llmkit run` with a fake engine, ended from outside: Ctrl-C once and twice, a reader that has gone."""

import signal
from typing import Any

import pytest

from llmkit.tools._interrupt import Interruption
from tests.tools.fake_engine import FakeEngine

GREEDY = ("--temp", "0")


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_prints_what_there_is(run: Any, engine: FakeEngine, as_json: bool) -> None:
    def press() -> None:
        if len(engine.ctx.calls) == 3:
            signal.raise_signal(signal.SIGINT)

    engine.on_decode = press
    result = run("-p", "Hello", *GREEDY, *(["--json"] if as_json else []))
    assert result.code == 130
    if as_json:
        assert (result.json["text"], result.json["stop_reason"]) == (" wor", "interrupted")
    else:
        assert result.out == "Hello wor"
        assert "decode" in result.err


def test_ctrl_c_in_the_prompt_takes_effect_after_the_chunk(run: Any, engine: FakeEngine) -> None:
    engine.on_decode = lambda: signal.raise_signal(signal.SIGINT) if not engine.ctx.calls else None
    result = run("-p", "Hello", "-b", "2", "--json")
    assert (result.code, result.json["ids"], result.json["timings"]["prompt_n"]) == (130, [], 2)


def test_a_second_ctrl_c_ends_at_once(run: Any, engine: FakeEngine) -> None:
    def press() -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    engine.on_decode = press
    assert run("-p", "Hello", "--json").code == 130


def test_the_handler_is_only_lent() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        assert signal.getsignal(signal.SIGINT) != before
        assert not interruption()
    assert signal.getsignal(signal.SIGINT) is before


# Closed stdout


def test_a_closed_stdout_ends_quietly(run: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(piece: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("llmkit.report.stream", closed)
    monkeypatch.setattr("llmkit.cli._drop_stdout", lambda: None)
    result = run("-p", "Hello")
    assert (result.code, result.out, result.err) == (0, "", "")
