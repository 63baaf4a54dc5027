"""What goes to stdout and what to stderr."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmkit import report


@pytest.fixture(autouse=True)
def normal_level() -> Iterator[None]:
    yield
    report.set_level()


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def say_everything() -> None:
    report.note("note")
    report.detail("detail")
    report.warning("careful")
    report.error("wrong", "do this")


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ({"quiet": True}, ""),
        ({}, "note\n"),
        ({"verbose": True}, "note\ndetail\n"),
        ({"quiet": True, "verbose": True}, ""),
    ],
)
def test_levels(levels: dict[str, bool], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    report.set_level(**levels)
    say_everything()
    seen = capsys.readouterr()
    assert seen.err == expected + "warning: careful\nerror: wrong\nhint: do this\n"
    assert seen.out == ""


def test_results(capsys: pytest.CaptureFixture[str]) -> None:
    report.set_level(quiet=True)
    report.result("text")
    report.stream("pie")
    report.stream("")
    report.stream("ce\n")
    report.result_json({"text": "naïve\n", "ids": [1, 2]})
    report.result_table([("x", 1.50)], ("name", "value"))
    seen = capsys.readouterr()
    first, second, third, *table = seen.out.splitlines()
    assert (first, second) == ("text", "piece")
    assert json.loads(third) == {"text": "naïve\n", "ids": [1, 2]}
    assert table[0].split() == ["name", "value"]
    assert table[2].split() == ["x", "1.5"]
    assert seen.err == ""


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError):
        report.result_json({"x": float("nan")})


def test_a_piece_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8"))
    report.stream("piece")
    assert raw.getvalue() == b"piece"


def test_a_message_does_not_continue_the_streamed_line(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Terminal()
    monkeypatch.setattr(sys, "stdout", both)
    monkeypatch.setattr(sys, "stderr", both)
    report.stream("half a sentence")
    report.note("interrupted")
    report.note("done")
    report.stream("a line\n")
    report.note("end")
    assert both.getvalue() == "half a sentence\ninterrupted\ndone\na line\nend\n"


def test_a_message_that_nobody_can_see_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        say_everything()
        with report.progress("work", 10) as bar:
            bar.update(10)


def test_progress_in_a_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nothing on a stderr that is no terminal; in the log file a line in several seconds, none for quick work."""
    report.open_log(str(tmp_path / "log"))
    now = [0.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    with report.progress("work", 200) as bar:
        for _ in range(20):
            now[0] += 1
            bar.update(10)
    report.close_log()
    assert capsys.readouterr().err == ""
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["work: 25%", "work: 50%", "work: 75%", "work: 100%"]


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with report.progress("work", 1000) as bar:
        bar.update(1000)
    assert "work" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_no_progress_in_quiet_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    report.set_level(quiet=True)
    with report.progress("work", 1000) as bar:
        bar.update(1000)
    assert terminal.getvalue() == ""
