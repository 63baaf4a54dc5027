"""Where prompts come from, and escapes."""

import io
import os
import sys
from pathlib import Path

import pytest

from llmkit.errors import UsageError
from llmkit.tools._prompt import parse_ids, read_prompt, read_stdin, unescape


def pipe(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))


VERBATIM = "  two\r\nlines\\n\twith\x00 é🦙 \n\n"


def test_a_file_is_taken_verbatim(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(VERBATIM.encode())
    assert read_prompt(None, str(tmp_path / "p"), escape=True) == VERBATIM


@pytest.mark.parametrize("file", ["-", None])
def test_stdin_is_taken_verbatim(monkeypatch: pytest.MonkeyPatch, file: str | None) -> None:
    pipe(monkeypatch, VERBATIM.encode())
    assert read_prompt(None, file, escape=True) == VERBATIM


def test_the_option_wins_over_a_pipe_which_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"piped")
    assert read_prompt("given", None, escape=True) == "given"
    assert read_stdin() == "piped"


def test_an_option_and_a_file_are_two_prompts() -> None:
    with pytest.raises(UsageError, match=r"-p and from -f"):
        read_prompt("a", "b", escape=True)


def test_a_terminal_is_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, ours = os.openpty()
    with open(ours) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(UsageError, match="no prompt"):
            read_prompt(None, None, escape=True)
    os.close(terminal)


@pytest.mark.parametrize("file", ["-", None])
def test_a_closed_stdin_is_no_prompt(monkeypatch: pytest.MonkeyPatch, file: str | None) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError):
        read_prompt(None, file, escape=True)


def test_bytes_that_are_no_text_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"ab\xff")
    with pytest.raises(UsageError, match=r"byte 2 is 0xff"):
        read_prompt(None, str(tmp_path / "p"), escape=True)
    with pytest.raises(UsageError, match="-p"):
        read_prompt("\\xff", None, escape=True)
    with pytest.raises(UsageError, match="-p"):
        read_prompt("\udcff", None, escape=False)
    pipe(monkeypatch, b"\xc3")
    with pytest.raises(UsageError, match="stdin"):
        read_stdin()


@pytest.mark.parametrize("name", ["absent", "", "a\0b"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="prompt file"):
        read_prompt(None, str(tmp_path / name) if name else str(tmp_path), escape=True)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (r"a\nb\tc\rd", "a\nb\tc\rd"),
        (r"\"\'\\", "\"'\\"),
        (r"\\n", r"\n"),
        (r"\xc3\xa9\x41", "éA"),
        (r"\xg1 \q \x4", r"\xg1 \q \x4"),
        ("\\", "\\"),
        ("é\\n🦙", "é\n🦙"),
    ],
)
def test_escapes(typed: str, meant: str) -> None:
    assert unescape(typed.encode()).decode() == meant
    assert read_prompt(typed, None, escape=True) == meant
    assert read_prompt(typed, None, escape=False) == typed


def test_ids() -> None:
    assert parse_ids("1,2,3") == [1, 2, 3]
    assert parse_ids(" 7 , 0\n") == [7, 0]


@pytest.mark.parametrize("text", ["", "1,,2", "1,", "-1", "+1", "1.0", "1_000", "٣", "0x10", "a", "1 2", "9" * 5000])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no token id"):
        parse_ids(text)
