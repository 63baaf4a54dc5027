"""`llmkit run --batch-lines`: an answer a line, in order, each what its line gives alone; bad lines; the streams."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from llmkit.tools._batch_lines import one_line
from llmkit.tools._interrupt import Interruption
from llmkit.tools._line_input import MAX_LINE, N_AHEAD, LineInput, Question
from tests.make_models import make_model
from tests.tools.in_process import Finished, run_llmkit

HOT = ("--temp", "2", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-c", "128", "-t", "2", "-n", "10")
LINES = [f"line {i} " + "and so on " * (i % 4) for i in range(11)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("lines") / "m.gguf", tokenizer="bpe"))


def llmkit(model: str, lines: bytes, *args: str) -> Finished:
    return run_llmkit("run", "-m", model, "--batch-lines", *HOT, "-q", *args, stdin=lines)


def joined(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def json_lines(done: Finished) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def alone(model: str, prompt: str, seed: int, *args: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(
        run_llmkit("run", "-m", model, *HOT, "-q", "--json", "-s", str(seed), "-p", prompt, "--no-escape", *args).stdout
    )
    return value


@pytest.mark.parametrize("n_parallel", [1, 4])
def test_each_answer_is_what_its_line_gives_alone(model: str, n_parallel: int) -> None:
    done = llmkit(
        model, joined([json.dumps(line) for line in LINES]), "--json", "-s", "7", "-np", str(n_parallel),
        "-p", "A prompt that they share: {} is", "--logprobs", "1",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    answers = json_lines(done)
    assert [answer["index"] for answer in answers] == list(range(len(LINES)))
    for i, (line, answer) in enumerate(zip(LINES, answers, strict=True)):
        single = alone(model, f"A prompt that they share: {line} is", 7 + i, "--logprobs", "1")
        same = ("text", "ids", "stop_reason", "stopping_word", "logprobs")
        assert {key: answer[key] for key in same} == {key: single[key] for key in same}
        assert answer["seed"] == 7 + i
        assert answer["prompt_n"] == len(single["prompt_ids"])
        assert answer["cached_n"] >= 15, "the common prompt is computed once"


def test_text_is_a_line_an_answer_in_order(model: str) -> None:
    done = llmkit(model, joined(LINES), "-s", "7", "-np", "3")
    texts = [alone(model, line, 7 + i)["text"] for i, line in enumerate(LINES)]
    assert done.stdout == "".join(one_line(text) + "\n" for text in texts)
    assert len(set(texts)) == len(texts)


def test_one_line_can_be_read_back() -> None:
    assert one_line("a\nb\\n\r") == r"a\nb\\n\r"


def test_blank_lines_line_ends_and_no_final_newline(model: str) -> None:
    done = llmkit(model, b"one\r\n\ntwo", "-s", "1")
    first, blank, second = done.stdout.split("\n")[:3]
    assert (done.returncode, blank) == (0, "")
    assert first == one_line(alone(model, "one", 1)["text"])
    assert second == one_line(alone(model, "two", 3)["text"])
    assert done.stdout.endswith("\n")
    answers = json_lines(llmkit(model, b'\n"one"\n  \n"two"', "-s", "1", "--json"))
    assert [(answer["index"], answer["seed"]) for answer in answers] == [(1, 2), (3, 4)]


def test_no_line_is_no_answer(model: str) -> None:
    done = llmkit(model, b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_bad_lines_are_errors_of_their_own(model: str) -> None:
    lines = [
        '"good"', "nonsense", "[1]", '{"prompt": 5}', '{"id": [1], "prompt": "x", "n": 3}', '{"id": "k"}',
        '{"prompt": "x", "seed": 1.5}', '{"prompt": "x", "n_predict": -2}', '{"prompt": "x", "stop": ""}',
        json.dumps("far too long " * 50), '{"prompt": "good", "id": "last", "seed": 1}',
    ]  # fmt: skip
    done = llmkit(model, joined(lines) + b"\xff\n", "--json", "-s", "1")
    answers = json_lines(done)
    assert done.returncode == 2
    assert [answer["index"] for answer in answers] == list(range(12))
    assert ["error" in answer for answer in answers] == [False] + [True] * 9 + [False, True]
    assert answers[0]["ids"] == answers[10]["ids"] == alone(model, "good", 1)["ids"]
    assert (answers[4]["id"], answers[10]["id"], "id" in answers[0]) == ([1], "last", False)
    messages = [answer["error"]["message"] for answer in answers if "error" in answer]
    wanted = ["no JSON", "neither a JSON text", "no prompt", "no field 'n'", "no prompt", "seed is 1.5"]
    wanted += ["n_predict is -2", "none of them empty", "the context holds", "not UTF-8"]
    for message, part in zip(messages, wanted, strict=True):
        assert part in message


def test_what_json_does_not_have_is_never_given_back(model: str) -> None:
    lines = ['{"prompt": "x", "id": NaN}', '{"prompt": "x", "id": [1e999]}', r'{"prompt": "x", "id": "\ud800"}']
    done = llmkit(model, joined(lines), "--json", "-s", "1")
    answers = json_lines(done)
    assert [answer.get("error", {}).get("message", answer.get("id")) for answer in answers] == [
        "the line is no JSON: NaN is no JSON number", "the line is no JSON: 1e999 is too large", "\ufffd"
    ]  # fmt: skip


def test_a_bad_line_of_text_is_a_blank_answer_and_a_message(model: str) -> None:
    done = llmkit(model, b"one\n\xff\ntwo\n", "-s", "1")
    assert done.returncode == 2
    assert [bool(line) for line in done.stdout.split("\n")] == [True, False, True, False]
    assert "error: line 2: the line is not UTF-8" in done.stderr


def test_a_line_has_fields_of_its_own(model: str) -> None:
    text = alone(model, "good", 3)["text"]
    stop = text[2:4]
    lines = [{"prompt": "good", "seed": 3, "stop": [stop]}, {"prompt": "good", "seed": 3, "n_predict": 2}]
    lines += [{"prompt": "good", "seed": 3, "n_predict": 0}]
    stopped, short, nothing = json_lines(llmkit(model, joined([json.dumps(line) for line in lines]), "--json"))
    assert (stopped["stop_reason"], stopped["stopping_word"]) == ("word", stop)
    assert stopped["text"] == text[: text.index(stop)]
    assert (len(short["ids"]), short["stop_reason"]) == (2, "limit")
    assert (nothing["ids"], nothing["text"], nothing["stop_reason"]) == ([], "", "limit")


def test_grammars_are_one_for_each_line(model: str) -> None:
    done = llmkit(model, joined(LINES), "--grammar", 'root ::= " " ("yes" | "no") "!"', "-np", "4")
    assert done.returncode == 0
    assert set(done.stdout.splitlines()) <= {" yes!", " no!"}
    assert len(done.stdout.splitlines()) == len(LINES)


def test_the_prompt_can_come_from_a_file(model: str, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Say {} again:")
    done = llmkit(model, b"a\n", "-s", "1", "-f", str(tmp_path / "p.txt"))
    assert done.stdout == one_line(alone(model, "Say a again:", 1)["text"]) + "\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-p", "no place"), "0 places {}"),
        (("-p", "{} and {}"), "2 places {}"),
        (("--ids", "1,2"), "--batch-lines reads many"),
        (("-f", "-"), "stdin, which holds the lines"),
        (("--logprobs", "2"), "with --json only"),
        (("-p", "{}", "--grammar", "root ::= x"), "no rule named x"),
        (("-np", "0"), "n_seq_max"),
    ],
)
def test_what_makes_no_sense_is_refused(model: str, args: tuple[str, ...], message: str) -> None:
    done = llmkit(model, b"a\n", *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr


def test_a_long_input_is_read_only_as_far_as_it_is_needed() -> None:
    read, write = os.pipe()
    n_written = 0

    def fill() -> None:
        nonlocal n_written
        for _ in range(100_000):
            os.write(write, b"x" * 1000 + b"\n")
            n_written += 1
        os.close(write)

    threading.Thread(target=fill, daemon=True).start()
    with os.fdopen(read, "rb") as file:
        lines = LineInput(file, as_json=False, interrupted=lambda: False)
        for i in range(5):
            question = lines.next(wait=True)
            assert isinstance(question, Question)
            assert question.index == i
        assert n_written < N_AHEAD + 300, "the rest waits in the pipe, which holds 64 KiB"
        while lines.next(wait=True) is not None:
            pass
    assert n_written == 100_000


def test_a_line_without_end_is_an_error_and_bounded(model: str) -> None:
    done = llmkit(model, b"a\n" + b"y" * (3 * MAX_LINE) + b"\nb\n", "-n", "2")
    assert done.returncode == 2
    assert "line 2: the line is longer than" in done.stderr
    assert [bool(line) for line in done.stdout.split("\n")[:3]] == [True, False, True]


def test_ctrl_c_ends_what_is_at_work_and_reads_no_more(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_asked = 0

    def asked(_: Interruption) -> bool:
        nonlocal n_asked
        n_asked += 1
        return n_asked > 6

    monkeypatch.setattr(Interruption, "__call__", asked)
    done = llmkit(model, joined([json.dumps(line) for line in LINES]), "--json", "-np", "2", "-n", "50")
    answers = json_lines(done)
    assert done.returncode == 130
    assert 0 < len(answers) < len(LINES)
    assert [answer["index"] for answer in answers] == list(range(len(answers)))
    assert answers[-1]["stop_reason"] == "interrupted"


def start(model: str, *args: str, **options: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "llmkit", "run", "-m", model, "--batch-lines", *HOT, "-q", *args]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_answers_come_while_the_input_is_still_open_and_a_gone_reader_is_no_error(model: str) -> None:
    with start(model) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n"), "the answer does not wait for more lines"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130, "Ctrl-C ends it while it waits for a line"
        assert process.stderr.read() == b""
    with start(model) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        _, errors = process.communicate(b"one\ntwo\n" * 50, timeout=60)
        assert (process.returncode, errors) == (0, b"")
