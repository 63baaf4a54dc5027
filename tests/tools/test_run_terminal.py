"""`llmkit run` as a process: at a real terminal, in a pipeline, with Ctrl-C from the keyboard. The model is fake."""

import json
import os
import signal
import subprocess
import sys

import pexpect
import pytest

from tests.paths import REPO_ROOT

ARGS = ["-m", "tests.tools.fake_llmkit", "run", "--temp", "0", "-c", "4096"]


def terminal(*args: str, **env: str) -> "pexpect.spawn[str]":
    env = {**os.environ, **env}
    return pexpect.spawn(sys.executable, [*ARGS, *args], cwd=str(REPO_ROOT), env=env, encoding="utf-8", timeout=60)


def shell(line: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a line of bash in which `llmkit` is the fake; the exit code is that of `llmkit`, not of the last program."""
    script = f'llmkit() {{ "{sys.executable}" {ARGS[0]} {ARGS[1]} "$@"; }}; {line}; exit ${{PIPESTATUS[0]}}'
    return subprocess.run(
        ["bash", "-c", script], cwd=REPO_ROOT, capture_output=True, text=True, timeout=60, input=stdin, check=False
    )


def test_text_grows_and_ctrl_c_ends_it() -> None:
    child = terminal("-p", "On")
    child.expect_exact("On and on and on and on")
    child.sendintr()
    child.expect_exact("decode")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


def test_ctrl_c_with_json_still_gives_the_object() -> None:
    child = terminal("-p", "On", "--json", FAKE_ANNOUNCES="1")
    child.expect_exact("decoding")
    child.sendintr()
    child.expect(r"\{.*\}\r\n")
    told = json.loads(child.after)
    child.expect(pexpect.EOF)
    child.close()
    assert told["stop_reason"] == "interrupted"
    assert child.exitstatus == 130


def test_the_last_line_is_ended_on_a_terminal() -> None:
    child = terminal("-p", "On", "-n", "7", "-q")
    child.expect(pexpect.EOF)
    assert child.before == "On and on\r\n"


def test_messages_start_on_a_line_of_their_own() -> None:
    child = terminal("-p", "On", "-n", "7")
    child.expect(pexpect.EOF)
    assert child.before is not None
    assert child.before.split("\r\n")[0] == "On and on"
    assert child.before.split("\r\n")[1].startswith("load")


def test_a_terminal_without_a_prompt_is_an_error() -> None:
    child = terminal("-no-cnv")
    child.expect_exact("error: there is no prompt")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1


def test_a_prompt_typed_at_the_terminal() -> None:
    child = terminal("-f", "-", "-n", "7", "--json", "-q")
    child.sendline("Hm")
    child.sendeof()
    child.expect(r"\{.*\}")
    assert json.loads(child.after)["prompt_ids"][1:] == [*b"Hm\n"]


def test_head_ends_it_quietly() -> None:
    result = shell("llmkit run -p On -c 4096 | head -c 20")
    assert (result.returncode, result.stdout, result.stderr) == (0, "On and on and on and", "")


def test_a_pipeline_gets_the_text_and_nothing_else() -> None:
    result = shell("printf 'On\\n' | llmkit run -n 7 --temp 0; false")
    assert result.stdout == "On\n and on"
    assert "decode" in result.stderr


def test_output_to_a_full_disk_is_an_error() -> None:
    result = shell("llmkit run -p On -n 3 > /dev/full")
    assert result.returncode == 1
    assert "No space left" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_closed_streams_do_no_harm(closed: str) -> None:
    result = shell(f"llmkit run -p On -n 7 --temp 0 {closed}")
    assert result.returncode == 0
    assert "Traceback" not in result.stderr


def test_an_interrupt_before_the_text_exits_130() -> None:
    child = subprocess.Popen(
        [sys.executable, *ARGS, "-f", "-"], cwd=REPO_ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    child.stdin.write("On" * 500_000)  # far more than a pipe holds: it is at reading
    child.stdin.flush()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in err
