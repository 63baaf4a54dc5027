"""`llmkit run` as a conversation with a fake engine: options, pipes, JSON, errors. The terminal is in
test_chat_terminal.py."""

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.files.gguf_writer import write_gguf
from llmkit.tools._chat_input import History, PipedLines
from tests.engine.fakes import Row
from tests.make_vocab import bpe_vocab
from tests.tools.fake_chat import echo
from tests.tools.fake_engine import BOS, N_VOCAB, FakeEngine

GREEDY = ("--temp", "0")
HI = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def talking(engine: FakeEngine) -> FakeEngine:
    engine.script = echo
    return engine


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def text_of(engine: FakeEngine) -> str:
    """All that the sequence holds, without the begin token."""
    tokens: list[int] = engine.ctx.memory.sequence(0).tokens
    assert tokens[0] == BOS
    return bytes(tokens[1:]).decode()


def test_one_turn(run: Any, talking: FakeEngine) -> None:
    result = run("-st", "-p", "Hi", *GREEDY)
    assert (result.code, result.out) == (0, "HI 2")
    assert [line.split()[0] for line in result.err.splitlines()] == ["load", "kernels", "prompt", "decode", "first"]
    assert text_of(talking) == HI + "HI 2"


def test_the_system_prompt(run: Any, talking: FakeEngine, tmp_path: Path) -> None:
    run("-st", "-p", "Hi", "-sys", r"Be\tbrief", *GREEDY)
    assert text_of(talking).startswith("<|im_start|>system\nBe\tbrief<|im_end|>\n" + HI)
    file = tmp_path / "system.txt"
    file.write_text("From a\\n file")
    run("-st", "-p", "Hi", "-sysf", str(file), *GREEDY)
    assert text_of(talking).startswith("<|im_start|>system\nFrom a\\n file<|im_end|>\n" + HI)


def test_a_single_turn_takes_all_that_is_piped_in(
    run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "a\nb\\\n/exit")
    assert run("-st", *GREEDY).out == "A\nB\\\n/EXIT 2"


def test_each_line_is_a_turn(run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "one\n\n/help\ntwo\\\nthree")
    result = run("-cnv", *GREEDY)
    assert (result.code, result.out) == (0, "ONE 2\n/HELP 4\nTWO\nTHREE 6\n")
    assert result.err == ""


def test_the_first_message_may_be_given(run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "two\n")
    assert run("-cnv", "-p", "one", *GREEDY).out == "ONE 2\nTWO 4\n"


def test_several_lines_up_to_a_backslash(run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "one\ntwo\\\nthree\n")
    assert run("-cnv", "-mli", *GREEDY).out == "ONE\nTWO 2\nTHREE 4\n"


def test_a_turn_a_line_of_json(run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "one\ntwo\n")
    first, second = map(json.loads, run("-cnv", "--json", *GREEDY).out.splitlines())
    assert (first["text"], second["text"]) == ("ONE 2", "TWO 4")
    assert first["stop_reason"] == "eos"
    assert first["timings"]["cache_n"] == 0
    # All but the end of the answer, which nobody decoded: what follows it is new.
    assert second["timings"]["cache_n"] == len(first["prompt_ids"]) + len(first["ids"]) - 1
    assert second["timings"]["cache_n"] + second["timings"]["prompt_n"] == len(second["prompt_ids"])


def test_verbose_shows_what_was_cached(run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "one\ntwo\n")
    err = run("-cnv", "-v", *GREEDY).err
    assert "chat template: chatml" in err
    assert "0 of them cached" in err
    assert err.count("cached") == 2
    assert err.count("decode") == 2


def test_the_answer_begins_as_told(run: Any, talking: FakeEngine) -> None:
    assert run("-st", "-p", "Hi", "--prefill", "HI", *GREEDY).out == "HI 2"
    assert talking.ctx.calls[0][0][1:] == list((HI + "HI").encode())


def test_stop_texts_end_an_answer(run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "one\ntwo\n")
    assert run("-cnv", "-r", " ", *GREEDY).out == "ONE \nTWO \n"


def test_ids_of_a_text_stay_what_they_were(run: Any, talking: FakeEngine) -> None:
    """-p alone completes, as ever."""
    run("-p", "Hi", "-n", "0", *GREEDY)
    assert text_of(talking) == "Hi"


def test_another_template(run: Any, talking: FakeEngine, tmp_path: Path) -> None:
    run(
        "-st",
        "-p",
        "Hi",
        "-n",
        "0",
        "--chat-template",
        "{{ messages[0].content }}{{ x }}",
        "--chat-template-kwargs",
        '{"x": 7}',
    )
    assert text_of(talking) == "Hi7"
    file = tmp_path / "t.jinja"
    file.write_text("[{{ messages[0].content }}]")
    run("-st", "-p", "Hi", "-n", "0", "--chat-template-file", str(file))
    assert text_of(talking) == "[Hi]"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-no-cnv", "-sys", "x", "-p", "a"), "-sys is for conversations"),
        (("-cnv", "--ids", "1"), "--ids does not go with"),
        (("-cnv", "-np", "2", "-p", "a"), "-np does not go with"),
        (("-st", "--logprobs", "1", "-p", "a"), "--logprobs does not go with"),
        (("-st", "-sys", "a", "-sysf", "b", "-p", "a"), "two system prompts"),
        (("-st", "-p", "a", "--chat-template-kwargs", "{"), "no JSON"),
        (("-st", "-p", "a", "--chat-template-kwargs", "[]"), "no JSON object"),
        (("-st", "-p", "a", "--chat-template-kwargs", '{"a": NaN}'), "NaN is no JSON number"),
        (("-st", "-p", "a", "--chat-template", "{{ 1 }}\udcff"), "--chat-template is not UTF-8: byte 7 is 0xff"),
        (("-st", "-p", "a", "--chat-template-kwargs", '{"messages": []}'), "which the conversation itself gives"),
        (("-st", "-p", "a", "--chat-template", "nosuch"), "There are bailing,"),
        (("-st", "-p", "a", "--chat-template", "{% if %}"), "no valid Jinja2"),
        (("-st", "-p", "a", "--chat-template", "{{ raise_exception('Never.') }}"), "refuses the messages: Never."),
        (("-st", "-p", "a", "--chat-template-file", "nosuch.jinja"), "cannot be read"),
        (("-st", "-p", "a", "--no-jinja", "--chat-template", "{{ 1 }}"), "built-in chat templates only"),
        (("-st", "-p", "a" * 600), "the context holds 512"),
        (("-st",), "stdin is closed|no prompt"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    import re

    monkeypatch.setattr(sys, "stdin", None)
    result = run(*args)
    assert result.code == 1
    assert re.search(message, result.err), result.err
    assert result.out == ""


def test_an_empty_pipe_is_no_conversation(run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "")
    assert (run("-cnv").code, run("-cnv").out) == (0, "")


def test_bytes_that_are_no_text(run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\nt\xff\n")))
    result = run("-cnv", *GREEDY)
    assert (result.code, result.out) == (1, "ONE 2\n")
    assert "byte 1 is 0xff" in result.err


def test_carriage_returns_are_no_part_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "one\r\ntwo\\\r\n\\")
    lines = PipedLines()
    assert [lines.read(), lines.read(), lines.read()] == ["one", "two\n", None]


# --template


@pytest.fixture
def vocabulary(tmp_path: Path) -> str:
    """A file with a tokenizer and a template, and nothing else."""
    path = tmp_path / "v.gguf"
    own = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
    more = {"tokenizer.chat_template": own, "tokenizer.chat_template.loud": own.replace("[", "!")}
    write_gguf(path, {"general.architecture": "llama", **bpe_vocab(), **more}, [])
    return str(path)


def test_the_prompt_of_a_message(run: Any, vocabulary: str) -> None:
    assert run("-m", vocabulary, "--template", "-p", "Hi", "-sys", "S").out == "[system]S[user]Hi[a]"
    assert run("-m", vocabulary, "--template", "-p", "Hi", "--chat-template", "loud").out == "!user]Hi!a]"
    assert run("-m", vocabulary, "--template", "-p", "Hi", "--chat-template", "chatml").out == HI
    assert run("-m", vocabulary, "--template", "-p", "Hi", "--prefill", "So").out == "[user]Hi[assistant]So"
    assert run("-m", vocabulary, "--template", "-p", "Hi", "--json").json["prompt"] == "[user]Hi[a]"


def test_the_prompt_of_messages(run: Any, vocabulary: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well "}]
    pipe(monkeypatch, json.dumps(messages))
    assert run("-m", vocabulary, "--template").out == "[user]Hi[assistant]Well "
    file = tmp_path / "m.json"
    file.write_text(json.dumps({"messages": messages[:1]}))
    assert run("-m", vocabulary, "--template", "-f", str(file)).out == "[user]Hi[a]"


@pytest.mark.parametrize("text", ["Hi", "3", "{}", '{"messages": 1}', "[1]", '[{"content": "x"}]', "[" * 100000])
def test_no_messages(run: Any, vocabulary: str, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    pipe(monkeypatch, text)
    result = run("-m", vocabulary, "--template")
    assert result.code == 1
    assert "no messages" in result.err


def test_without_jinja_a_file_s_own_template_is_not_run(run: Any, vocabulary: str) -> None:
    assert "built-in" in run("-m", vocabulary, "--template", "-p", "Hi", "--no-jinja").err
    assert run("-m", vocabulary, "--template", "-p", "Hi", "--no-jinja", "--chat-template", "chatml").out == HI


def test_showing_a_prompt_needs_no_kernels(vocabulary: str) -> None:
    import subprocess

    code = (
        "import sys; from llmkit.cli import main; main(sys.argv[1:]); "
        "sys.exit(any(m in sys.modules for m in ('numba', 'llvmlite', 'tokenizers')))"
    )
    args = ["run", "-m", vocabulary, "--template", "-p", "Hi"]
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[user]Hi[a]", "")


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ 'a' * 10**9 }}", "{% for i in range(10**9) %}{% endfor %}", "{% for %}"],
)
def test_a_file_that_means_harm(run: Any, talking: FakeEngine, tmp_path: Path, source: str) -> None:
    """Case 9: the template comes with the model, so nobody chose it."""
    path = tmp_path / "harm.gguf"
    write_gguf(path, {"general.architecture": "llama", **bpe_vocab(), "tokenizer.chat_template": source}, [])
    result = run("-m", str(path), "--template", "-p", "Hi")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: the chat template ")


# History


def test_the_history_is_bounded_and_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history"
    history = History(path)
    assert history.entries() == []
    for i in range(2001):
        history.add(f"line {i}\nmore é")
    assert path.stat().st_mode & 0o777 == 0o600
    assert history.entries() == [f"line {i}\nmore é" for i in range(1001, 2001)]
    assert len(path.read_text().splitlines()) == 1000
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_history_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'"one"\n{"no": 1}\nnot json\n"two"\n')
    assert History(path).entries() == ["one", "two"]
    path.write_bytes(b"\xff\xfe")
    assert History(path).entries() == []
    History(tmp_path).add("a directory")
    assert History(tmp_path).entries() == []


def test_settings_do_not_make_a_conversation(
    run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A variable or the configuration gives a conversation its system prompt or template, and leaves completions be."""
    monkeypatch.setenv("LLMKIT_SYSTEM_PROMPT", "Be brief")
    monkeypatch.setenv("LLAMA_ARG_CHAT_TEMPLATE", "llama2-sys")
    assert run("-p", "Hi", "-n", "0").code == 0
    assert text_of(talking) == "Hi"
    assert run("-cnv", "-st", "-p", "Hi", "-n", "0").code == 0
    assert text_of(talking) == "[INST] <<SYS>>\nBe brief\n<</SYS>>\n\nHi [/INST]"


def flat(letters: str) -> Any:
    """A script for which these letters are all equally good."""

    def script(tokens: list[int]) -> Row:
        row = np.zeros(N_VOCAB, dtype=np.float32)
        row[list(letters.encode())] = 20
        return row

    return script


def test_each_answer_has_its_own_random_numbers(run: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.script = flat("abcdefghijklmnop")
    answers = []
    for _ in range(2):
        pipe(monkeypatch, "x\nx\nx\n")
        answers.append(run("-cnv", "-s", "7", "-n", "12").out.split())
    assert answers[0] == answers[1], "the seed decides"
    assert len(set(answers[0])) == 3, "and each answer draws anew"


def test_penalties_see_what_was_cached(run: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.script = flat("QYZ")
    pipe(monkeypatch, "x\n" * 3)
    options = ("--presence-penalty", "9", "--repeat-last-n", "4000", "-n", "1", *GREEDY)
    assert run("-cnv", *options).out == "Q\nY\nZ\n"


@pytest.mark.parametrize("rewind", ["any", "points"])
def test_ctrl_c_before_the_answer_takes_the_message_back(run: Any, talking: FakeEngine, rewind: str) -> None:
    talking.rewind = rewind
    talking.on_decode = lambda: os.kill(os.getpid(), signal.SIGINT)
    result = run("-st", "-p", "Hi" * 40, "-ub", "16", *GREEDY)
    assert (result.code, result.out) == (130, "")
    assert "the message was taken back" in result.err
    assert len(talking.ctx.calls) == 1


def test_memory_with_windows_keeps_a_point_before_the_last_token(
    run: Any, talking: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an answer can be taken back where the window has moved on; what is said and counted is the same."""
    told = []
    for talking.rewind in ("any", "points"):
        pipe(monkeypatch, "one\ntwo\n")
        lines = [json.loads(line) for line in run("-cnv", "--json", *GREEDY).out.splitlines()]
        told.append([(line["text"], line["ids"], line["timings"]["prompt_n"]) for line in lines])
    assert told[0] == told[1]
    kept = talking.ctx.memory.sequence(3).tokens  # the second of four
    assert bytes(kept[1:]).decode().endswith("two<|im_end|>\n<|im_start|>assistant")


def test_penalties_see_the_whole_prompt_with_windows_too(
    run: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.rewind, engine.script = "points", flat("QYZ")
    pipe(monkeypatch, "x\n" * 3)
    options = ("--presence-penalty", "9", "--repeat-last-n", "4000", "-n", "1", *GREEDY)
    assert run("-cnv", *options).out == "Q\nY\nZ\n"
