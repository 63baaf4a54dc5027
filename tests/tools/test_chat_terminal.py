"""A conversation as a person sees it, at a real terminal. The model is fake but for the last test."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from llmkit.files.gguf_writer import write_gguf
from llmkit.tokenizer.chat_template_names import BUILT_IN
from tests.engine_runs import need_engine
from tests.make_models import make_model
from tests.make_vocab import bpe_vocab
from tests.paths import REPO_ROOT, SKIP_SLOW

UP = "\x1b[A"
PROMPT = "\r\n> "


class Session:
    """What is typed, and what is then on the screen up to the next prompt."""

    def __init__(self, child: "pexpect.spawn[str]") -> None:
        self.child = child

    def ask(self, text: str) -> str:
        """Types a line; what is shown after it."""
        self.child.sendline(text)
        self.child.expect_exact(PROMPT)
        return self.shown(text)

    def shown(self, text: str) -> str:
        before = self.child.before
        assert isinstance(before, str)
        return before.removeprefix(text).strip("\r\n").replace("\r\n", "\n")

    def end(self) -> int | None:
        """Waits for the end; the exit code."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


def started(tmp_path: Path, *args: str, module: str = "tests.tools.fake_chat", **env: str) -> Session:
    """At the first prompt. The model's file has a template, so no option asks for a conversation."""
    path = tmp_path / "model.gguf"
    if not path.exists():
        metadata = {"general.architecture": "llama", **bpe_vocab(), "tokenizer.chat_template": BUILT_IN["chatml"]}
        write_gguf(path, metadata, [])
    child = pexpect.spawn(
        sys.executable,
        ["-m", module, "run", "-m", str(path), "--temp", "0", *args],
        cwd=str(REPO_ROOT),
        env={**os.environ, "NO_COLOR": "1", "TERM": "xterm", "XDG_DATA_HOME": str(tmp_path), **env},
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 200),
    )
    child.delaybeforesend = None
    session = Session(child)
    # readline would wrap what is pasted into brackets of its own
    child.expect(r"> (\x1b\[\?2004h)?")
    return session


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Session]:
    (tmp_path / "inputrc").write_text("set enable-bracketed-paste off\n")
    session = started(tmp_path, "-c", "8192", INPUTRC=str(tmp_path / "inputrc"))
    yield session
    session.child.close(force=True)


def test_a_conversation(talk: Session, tmp_path: Path) -> None:
    before = talk.child.before
    assert isinstance(before, str)
    assert before.startswith("fake: /help lists commands")
    assert talk.ask("one") == "ONE 2"
    assert talk.ask("two") == "TWO 4"
    assert re.search(r"last prompt \d+ tokens, \d\d+ of them cached", talk.ask("/stats"))
    assert talk.ask("/undo") == "taken back; 2 messages"
    assert talk.ask("three") == "THREE 4"
    assert talk.ask("/regen") == "THREE 4"
    file = tmp_path / "talk.json"
    assert talk.ask(f"/save {file}") == f"{file}: 4 messages"
    assert [m["content"] for m in json.loads(file.read_text())["messages"]] == ["one", "ONE 2", "three", "THREE 4"]
    assert talk.ask("/clear") == "begun anew"
    assert talk.ask("one") == "ONE 2"
    assert talk.ask(f"/load {file}") == f"{file}: 4 messages"
    assert talk.ask("four") == "FOUR 6"
    assert talk.ask("/prefill FI") == "the next answer begins with 'FI'"
    assert talk.ask("five") == "FIVE 8"
    assert "/regen" in talk.ask("/help")
    talk.child.sendline("/exit")
    assert talk.end() == 0


def test_what_goes_wrong_does_not_end_it(talk: Session, tmp_path: Path) -> None:
    assert "did you mean /help?" in talk.ask("/hepl")
    assert "no message to answer" in talk.ask("/regen")
    assert "no turn to take back" in talk.ask("/undo")
    assert "No such file" in talk.ask(f"/load {tmp_path}/nosuch")
    (tmp_path / "bad.json").write_text('[{"role": 3}]')
    assert "message 0 has no role" in talk.ask(f"/load {tmp_path}/bad.json")
    assert "cannot be written" in talk.ask(f"/save {tmp_path}/nosuch/talk.json")
    assert talk.ask("") == ""
    assert talk.ask(" /usr/bin is a folder") == " /USR/BIN IS A FOLDER 2"
    talk.child.sendeof()
    assert talk.end() == 0


def test_a_full_context_says_what_to_do(tmp_path: Path) -> None:
    talk = started(tmp_path, "-c", "256")
    assert talk.ask("one") == "ONE 2"
    told = talk.ask("long")
    assert "on and on" in told
    assert "the context of 256 tokens is full: the answer ends here; /undo or /clear makes room" in told
    assert "but the context holds 256" in talk.ask("two")
    assert talk.ask("/undo") == "taken back; 2 messages"
    assert talk.ask("three") == "THREE 4"
    talk.child.close(force=True)


@pytest.mark.parametrize("when", ["at the prompt", "in an answer"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=("term", "hup"))
def test_kill_ends_the_program_and_not_only_the_answer(talk: Session, when: str, number: int, code: int) -> None:
    if when == "in an answer":
        talk.child.sendline("long")
        talk.child.expect_exact("on and on and on and")
    talk.child.kill(number)
    assert talk.end() == code


def test_ctrl_c_stops_the_answer_and_not_the_program(talk: Session) -> None:
    talk.child.sendline("long")
    talk.child.expect_exact("on and on and on and")
    talk.child.sendintr()
    talk.child.expect_exact(PROMPT)
    assert talk.ask("two") == "TWO 4", "what was said stays"
    talk.child.send("half a li")
    talk.child.sendintr()
    talk.child.expect_exact("Ctrl-C once more ends the conversation" + PROMPT)
    assert talk.ask("three") == "THREE 6"
    talk.child.sendintr()
    talk.child.expect_exact(PROMPT)
    talk.child.sendintr()
    assert talk.end() == 130


def test_lines_are_edited_and_continued(talk: Session) -> None:
    talk.child.send("wo\x01t")  # Ctrl-A: to the beginning
    assert talk.ask("").endswith("TWO 2")
    assert talk.ask(UP).endswith("TWO 4"), "what was typed before"
    talk.child.sendline("a\\")
    assert talk.ask("b").endswith("A\nB 6")
    assert "over lines" in talk.ask("/multi")
    talk.child.sendline("c")
    assert talk.ask("d\\").endswith("C\nD 8")
    assert "one line again" in talk.ask("/multi")
    assert talk.ask("e é\U0001f999") == "E É\U0001f999 10"
    # A terminal puts what is pasted into brackets, so that its newlines end no message.
    talk.child.send("\x1b[200~f\ng\x1b[201~")
    assert talk.ask("").endswith("F\nG 12")


def test_what_was_typed_is_there_the_next_time(tmp_path: Path) -> None:
    first = started(tmp_path)
    first.ask("remember")
    first.child.sendeof()
    assert first.end() == 0
    again = started(tmp_path)
    assert again.ask(UP).endswith("REMEMBER 2")
    again.child.sendline("/exit")
    assert again.end() == 0
    assert [json.loads(line) for line in (tmp_path / "llmkit" / "chat_history").read_text().splitlines()][:2] == [
        "remember"
    ] * 2
    off = started(tmp_path, "--no-history")
    off.ask("secret")
    off.child.sendline("/exit")
    assert off.end() == 0
    assert "secret" not in (tmp_path / "llmkit" / "chat_history").read_text()


def test_colours(tmp_path: Path) -> None:
    talk = started(tmp_path, NO_COLOR="")
    assert isinstance(talk.child.before, str)
    assert talk.child.before.endswith("\x1b[1;32m")
    talk.child.sendline("one")
    talk.child.expect_exact("\x1b[0mONE 2\r\n")
    talk.child.close(force=True)
    plain = started(tmp_path)
    plain.ask("one")
    assert "\x1b[1;32m" not in str(plain.child.before)
    plain.child.close(force=True)


def test_a_model_without_a_template_says_how_to_talk(tmp_path: Path) -> None:
    write_gguf(tmp_path / "bare.gguf", {"general.architecture": "llama", **bpe_vocab()}, [])
    args = ["-m", "tests.tools.fake_chat", "run", "-m", str(tmp_path / "bare.gguf")]
    child = pexpect.spawn(sys.executable, args, cwd=str(REPO_ROOT), encoding="utf-8", timeout=60)
    child.expect_exact("no chat template; -cnv converses all the same")
    child.expect_exact("error: there is no prompt")
    assert Session(child).end() == 1


def test_one_turn_is_typed(tmp_path: Path) -> None:
    talk = started(tmp_path, "-st", "-q")
    talk.child.sendline("one")
    talk.child.expect_exact("ONE 2\r\n")
    assert talk.end() == 0


def test_a_model_that_runs(tmp_path: Path) -> None:
    """A tiny random model: the second prompt finds the first one, and the answer is the one that it gives anew."""
    need_engine()
    make_model(
        tmp_path / "model.gguf",
        tokenizer="bpe",
        metadata={"tokenizer.chat_template": BUILT_IN["chatml"]},
    )
    talk = started(tmp_path, "-n", "5", "-c", "256", "-t", "1", module="llmkit")
    talk.ask("hello there")
    answer = talk.ask("and then")
    stats = talk.ask("/stats")
    n_prompt, n_cached = map(int, re.findall(r"last prompt (\d+) tokens, (\d+) of them cached", stats)[0])
    assert 0 < n_cached < n_prompt
    assert talk.ask("/regen") == answer
    assert f"{n_prompt} tokens, {n_prompt - 1} of them cached" in talk.ask("/stats")
    talk.child.sendeof()
    assert talk.end() == 0


@pytest.mark.skipif(SKIP_SLOW, reason="runs a real model for some seconds")
def test_a_real_model(tmp_path: Path, real_model: Callable[[str], Path]) -> None:
    """What it says in a conversation is what it says when the same messages are all new to it."""
    need_engine()
    (tmp_path / "model.gguf").symlink_to(real_model("smollm2-135m"))
    args = ("-n", "12", "-c", "512", "-sys", "You answer in few words.")
    talk = started(tmp_path, *args, module="llmkit")
    talk.ask("What is the capital of France?")
    answer = talk.ask("And of Italy?")
    assert re.search(r"last prompt \d+ tokens, [3-9]\d of them cached", talk.ask("/stats"))
    file = tmp_path / "talk.json"
    talk.ask(f"/save {file}")
    talk.child.sendline("/exit")
    assert talk.end() == 0
    again = started(tmp_path, *args, module="llmkit")
    again.ask(f"/load {file}")
    assert again.ask("/regen") == answer
    assert " 0 of them cached" in again.ask("/stats")
    again.child.close(force=True)
