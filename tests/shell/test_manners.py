"""Levels, the log file, colours, progress, signals: in a process, or on a terminal, of their own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

from llmkit import cli, report
from llmkit.shell import signals
from tests.paths import REPO_ROOT
from tests.shell.fake import install
from tests.tools.in_process import run_llmkit

FAKE = [sys.executable, "-m", "tests.fake_command"]
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4} ")


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def terminal(*args: str, **env: str) -> str:
    """What a terminal shows while the command runs, messages and results."""
    full = {**os.environ, "TERM": "xterm", **env}
    full.pop("NO_COLOR", None) if env.get("NO_COLOR") == "" else None
    child = pexpect.spawn(FAKE[0], [*FAKE[1:], *args], cwd=str(REPO_ROOT), env=full, timeout=30, encoding="utf-8")
    child.expect(pexpect.EOF)
    child.close()
    return str(child.before)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ([], ["note", "warning: careful", "a table"]),
        (["-v"], ["note", "detail", "warning: careful", "a table"]),
        (["-q"], ["warning: careful", "a table"]),
    ],
)
def test_levels_of_a_command_that_declares_none(flags: list[str], shown: list[str]) -> None:
    assert run_llmkit("fake", "say", *flags).stderr.splitlines() == shown


def test_quiet_and_verbose() -> None:
    assert "error: -q and -v exclude each other" in run_llmkit("fake", "say", "-q", "-v").stderr


def test_the_log_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for args in (["say"], ["llmkit-error"], ["say", "-q", "--top-k", "x"]):
        run_llmkit("fake", *args, "--log-file", str(log))
    lines = log.read_text().splitlines()
    assert all(STAMP.match(line) for line in lines)
    assert [STAMP.sub("", line) for line in lines] == [
        "note",
        "warning: careful",
        "a table",
        "error: 5 tokens do not fit",
        "hint: use a larger -c",
        "error: Invalid value for '--top-k' / '-tk': 'x' is not a whole number.",
        "hint: `llmkit fake --help` shows the options",
    ]
    assert report._State.log is None


def test_a_log_file_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_LOG_FILE", str(tmp_path / "log"))
    run_llmkit("fake", "say")
    assert "note" in (tmp_path / "log").read_text()


def test_a_log_file_that_cannot_be_written(tmp_path: Path) -> None:
    done = run_llmkit("fake", "say", "--log-file", str(tmp_path / "no" / "log"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot write the log file {tmp_path}/no/log: No such file or directory\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_under_the_log_does_not_end_the_work() -> None:
    done = run_llmkit("fake", "say", "--log-file", "/dev/full")
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, "note")


RED, YELLOW = "\x1b[1;31merror:\x1b[0m", "\x1b[1;33mwarning:\x1b[0m"


def test_colours_on_a_terminal() -> None:
    assert YELLOW in terminal("say", NO_COLOR="")
    assert RED in terminal("llmkit-error", NO_COLOR="")
    assert YELLOW not in terminal("say", NO_COLOR="1")
    assert YELLOW not in terminal("say", NO_COLOR="", TERM="dumb")
    assert YELLOW not in terminal("say", "--color", "off", NO_COLOR="")
    assert YELLOW in terminal("say", "--color", NO_COLOR="1")


def test_colours_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in run_llmkit("fake", "say").stderr
    assert YELLOW in run_llmkit("fake", "say", "-co", "on").stderr
    assert "--color is 'blue'" in run_llmkit("fake", "say", "--color", "blue").stderr


def test_the_prompt_has_a_colour_of_its_own() -> None:
    command = ["-m", "tests.tools.fake_llmkit", "run", "-p", "hello", "-n", "4", "--temp", "0", "-q"]
    env = {**os.environ, "TERM": "xterm"}
    for color, shown in (("auto", "hello and"), ("on", "\x1b[33mhello\x1b[0m and")):  # NO_COLOR is set
        text = pexpect.run(f"{sys.executable} {' '.join(command)} --color {color}", cwd=str(REPO_ROOT), env=env)
        assert text.decode().startswith(shown)


def test_no_colour_in_the_log(tmp_path: Path) -> None:
    run_llmkit("fake", "say", "--color", "on", "--log-file", str(tmp_path / "log"))
    assert "\x1b" not in (tmp_path / "log").read_text()


def test_progress_on_a_terminal_only() -> None:
    assert "work:   0%|" in terminal("say")
    assert "work" not in run_llmkit("fake", "say").stderr


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")],
    ids=("int", "term", "hup"),
)
def test_every_signal_ends_a_command_as_ctrl_c_does(number: int, code: int, said: str) -> None:
    with subprocess.Popen([*FAKE, "wait"], cwd=REPO_ROOT, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, messages = process.communicate(timeout=30)
    assert (process.returncode, messages) == (code, f"{said}\n")


def test_sigterm_lets_a_completion_end_well() -> None:
    """Which is what the first Ctrl-C does: the text so far, and the JSON that says so."""
    command = [
        sys.executable,
        "-m",
        "tests.tools.fake_llmkit",
        "run",
        "-p",
        "x",
        "--temp",
        "0",
        "--json",
        "-c",
        "100000",
    ]
    env = {**os.environ, "FAKE_ANNOUNCES": "1"}
    with subprocess.Popen(command, cwd=REPO_ROOT, env=env, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        assert "decoding\n" in process.stderr
        process.send_signal(signal.SIGTERM)
        answer, _ = process.communicate(timeout=30)
    assert process.returncode == 143
    assert '"stop_reason": "interrupted"' in answer


def test_ctrl_c_in_an_import_is_no_death_by_signal() -> None:
    assert subprocess.run([*FAKE, "interrupt-an-import"], cwd=REPO_ROOT, stderr=-1, timeout=60).returncode == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["before", "within", "after", "telling"])
def test_a_signal_at_any_moment(number: int, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the work, it does not begin; after it, and while an error is told, all that is left is done."""
    done: list[str] = []

    def at(now: str) -> None:
        done.append(now)
        if now == moment:
            signal.raise_signal(number)

    def work() -> int:
        at("within")
        if moment == "telling":
            raise KeyError
        return 0

    monkeypatch.setattr(report, "close_log", lambda: at("after"))
    monkeypatch.setattr(report, "error", lambda *_: at("telling"))
    with signals.as_ctrl_c():
        if moment == "before":
            at("before")
        assert cli.guarded(work) == 128 + number
    steps = {"before": [], "within": ["within"], "after": ["within"], "telling": ["within", "telling"]}[moment]
    assert done == [*(["before"] if moment == "before" else []), *steps, "after"]
    monkeypatch.setattr(report, "close_log", lambda: None)
    assert cli.guarded(lambda: 0) == 0  # it is forgotten


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_a_destructor_swallows_comes_again(number: int) -> None:
    class Thing:
        def __del__(self) -> None:
            signal.raise_signal(number)

    def work() -> int:
        Thing()
        time.sleep(60)
        return 0

    before = sys.unraisablehook
    assert cli.guarded(work) == 128 + number
    assert sys.unraisablehook is before


def test_a_second_signal_ends_what_hangs() -> None:
    with signals.as_ctrl_c():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_nohup_is_respected() -> None:
    code = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen([sys.executable, "-c", code, *FAKE, "wait"], cwd=REPO_ROOT, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 143


def test_handlers_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    run_llmkit("fake", "say")
    assert [signal.getsignal(number) for number in numbers] == before
