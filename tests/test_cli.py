"""The entry point: what it costs, what it says, and how it ends."""

import json
import os
import signal
import subprocess
import sys

import pytest

from llmkit import __version__, cli
from llmkit.shell.groups import words
from tests.fake_command import FAKE
from tests.paths import REPO_ROOT

HEAVY = {"numpy", "numba", "llvmlite", "gguf", "tokenizers", "jinja2", "huggingface_hub", "rich"}


def llmkit(*args: str, **options: object) -> "subprocess.CompletedProcess[str]":
    """Run the real thing in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "llmkit", *args], cwd=REPO_ROOT, capture_output=True, text=True, timeout=60, **options
    )  # type: ignore[call-overload, no-any-return]


def fake(*args: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run the command of fake_command.py in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tests.fake_command", *args],
        cwd=REPO_ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )


def seconds(*command: str) -> float:
    """The best of five runs, of the processor's time: what else the machine does has no part in it."""
    times = []
    for _ in range(5):
        before = os.times()
        subprocess.run(command, cwd=REPO_ROOT, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        times.append(sum(after[2:4]) - sum(before[2:4]))
    return min(times)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_it_answers_within_the_budget(option: str) -> None:
    assert seconds(sys.executable, "-m", "llmkit", option) < 0.3


def test_help_lists_every_command() -> None:
    done = llmkit("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for command in cli.COMMANDS.values():
        assert f"  {words(command.name)} " in done.stdout
        assert command.help in done.stdout


def test_the_version() -> None:
    lines = llmkit("--version").stdout.splitlines()
    assert lines[0] == f"llmkit {__version__}"
    assert [line.split()[0] for line in lines[1:]] == ["python", "numba", "llvmlite", "numpy", "cpu"]
    assert llmkit("run", "--version").stdout.splitlines() == lines  # as llama.cpp's tools take it


def test_without_a_command_it_shows_the_help() -> None:
    done = llmkit()
    assert done.returncode == 1
    assert "Usage: llmkit COMMAND" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in cli.COMMANDS)], ids=" ".join)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import json, sys
from llmkit.cli import main
from llmkit.shell.groups import words
code = main({arguments!r})
print(json.dumps([code, sorted({{name.partition(".")[0] for name in sys.modules}})]), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO_ROOT, capture_output=True, text=True, timeout=60)
    exit_code, loaded = json.loads(done.stderr.splitlines()[-1])
    assert exit_code == 0
    assert not HEAVY & set(loaded)
    if arguments == ["--help"]:
        assert "typer" not in loaded


def test_an_unknown_command() -> None:
    done = llmkit("pul")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: there is no command 'pul'\nhint: did you mean `llmkit pull`? `llmkit --help` lists the commands\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--zzz"], "No such option: --zzz"),
        (["--top-k"], "Option '--top-k' requires an argument"),
        (["--top-k", "many"], "Invalid value for '--top-k'"),
        (["a", "b"], "unexpected extra argument"),
    ],
)
def test_a_usage_error_is_a_user_error(arguments: list[str], words: str) -> None:
    done = fake(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert words in first
    assert second == "hint: `llmkit fake --help` shows the options"


def test_a_model_without_its_option_is_told_how() -> None:
    hint = fake("a", "b.gguf").stderr.splitlines()[1]
    assert hint == "hint: a model is given with -m; `llmkit fake --help` shows the options"


@pytest.mark.parametrize(
    "arguments", [["--top-k", "7"], ["--top_k", "7"], ["--top_k=7"], ["-tk", "7"]], ids=lambda arguments: arguments[0]
)
def test_underscores_may_stand_for_dashes(arguments: list[str]) -> None:
    assert fake(*arguments, "-p", "--a_b --c_d").stdout == "7 --a_b --c_d\n"


@pytest.mark.parametrize(
    ("how", "exit_code", "message"),
    [
        ("llmkit-error", 1, "error: 5 tokens do not fit\nhint: use a larger -c\n"),
        ("memory", 1, "error: out of memory\nhint: use a smaller model, or a smaller context (-c) or batch (-b)\n"),
        ("interrupt", 130, "interrupted\n"),
        ("missing-file", 1, "error: No such file or directory: /no/such/file\n"),
        ("negative", 2, ""),
        ("exit", 2, ""),
    ],
)
def test_every_end_has_its_exit_code(how: str, exit_code: int, message: str) -> None:
    done = fake(how)
    assert (done.returncode, done.stderr, done.stdout) == (exit_code, message, "")


def test_a_bug_is_called_one() -> None:
    done = fake("bug")
    assert done.returncode == 1
    assert "internal error: KeyError: 'surprise' in fake_command.py:" in done.stderr
    assert "Traceback" not in done.stderr
    assert "LLMKIT_DEBUG=1" in done.stderr


@pytest.mark.parametrize("how", ["bug", "llmkit-error"])
def test_the_traceback_on_demand(how: str) -> None:
    done = fake(how, LLMKIT_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "error: " in done.stderr.splitlines()[-2]


def start_endless() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.fake_command", "endless"]
    return subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`llmkit ... | head -1`."""
    with start_endless() as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "word\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 0


def test_ctrl_c() -> None:
    with start_endless() as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=30)
    assert (process.returncode, messages) == (130, "interrupted\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "llmkit", "--help"], cwd=REPO_ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


def test_a_terminal_that_cannot_show_it() -> None:
    done = fake("-p", "naïve", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "0 na?ve\n")


def test_main_in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests of commands may call `main` and look at what it wrote."""
    monkeypatch.setitem(cli.COMMANDS, "fake", FAKE)
    assert cli.main(["fake", "-p", "x"]) == 0
    assert capsys.readouterr().out == "0 x\n"
    assert cli.main(["fake", "--help"]) == 0
    assert "End in the way that HOW says." in capsys.readouterr().out
