"""The Tab key, through real shells where they are there: commands, options, models."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from llmkit import cli
from tests.paths import REPO_ROOT

HEAVY = ("numba", "numpy", "pydantic", "gguf", "huggingface_hub", "rich")


def ask(words: str, cwd: Path = REPO_ROOT, **env: str) -> list[str]:
    """What bash is told for `llmkit WORDS` with the cursor at the end."""
    given = ["llmkit", *words.split(" ")]
    variables = {"COMP_WORDS": "\n".join(given), "COMP_CWORD": str(len(given) - 1), "_LLMKIT_COMPLETE": "complete_bash"}
    return answer({**variables, **env}, cwd).split()


def answer(variables: dict[str, str], cwd: Path = REPO_ROOT) -> str:
    """What a shell is told that asks by these variables."""
    code = "import sys; from llmkit.cli import main; code = main(['llmkit'])\n"
    code += f"assert not set({HEAVY}) & sys.modules.keys(); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_commands() -> None:
    firsts = dict.fromkeys("state" if name.startswith("state-") else name for name in cli.COMMANDS)
    assert ask("") == [*firsts, "--help", "--version", "--install-completion", "--show-completion"]
    assert ask("pe") == ["perplexity"]
    assert ask("--show-completion ") == ["bash", "zsh", "fish"]
    assert ask("nonsense ") == []


def test_commands_of_two_words() -> None:
    assert ask("sta") == ["state"]
    assert ask("state ") == ["save", "load", "info", "verify", "diff", "ls", "convert"]
    assert ask("state l") == ["load", "ls"]
    assert {"--state-seq"} == set(ask("state load --state"))
    assert ask("state convert --to gg") == ["ggsq", "ggsn"]
    assert ask("state nonsense --") == []


def test_options() -> None:
    assert {"--top-k", "--top-p", "--top-n-sigma"} <= set(ask("run --top"))
    assert "--log-file" in ask("cache --l")
    assert ask("run --temp 0 --no-esc") == ["--no-escape"]


def test_zsh_and_fish_show_what_things_are_for() -> None:
    zsh = answer({"_LLMKIT_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "llmkit passkey --ju"})
    assert zsh.startswith('_arguments \'*: :(("--junk":"')
    fish = {"_LLMKIT_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert answer({**fish, "_TYPER_COMPLETE_ARGS": "llmkit pass"}).startswith("passkey\tFind a number")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("hf--user--some-repo/a-Q4_K_M.gguf", "hf--user--other/.partial/b.gguf"):
        (tmp_path / "models" / name).parent.mkdir(parents=True)
        (tmp_path / "models" / name).touch()
    monkeypatch.setenv("LLMKIT_CACHE", str(tmp_path))
    return tmp_path


def test_models(cache: Path) -> None:
    assert ask("run -m smol") == ["smollm2-135m"]
    assert ask("bench --model gem") == ["gemma-3-270m"]
    assert ask("tokenize -hf us") == ["user/some-repo"]


def test_models_that_are_files(tmp_path: Path) -> None:
    for name in ("sub", ".hidden"):
        (tmp_path / name).mkdir()
    for name in ("some.gguf", "sub/inner.gguf", "other.txt"):
        (tmp_path / name).touch()
    assert ask("run -m s", cwd=tmp_path, PYTHONPATH=str(REPO_ROOT)) == ["smollm2-135m", "some.gguf", "sub/"]
    assert ask(f"run -m {tmp_path}/sub/") == [f"{tmp_path}/sub/inner.gguf"]


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".bash_completions/llmkit.sh"),
        ("zsh", ".zfunc/_llmkit"),
        ("fish", ".config/fish/completions/llmkit.fish"),
    ],
)
def test_installing(shell: str, place: str, tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "llmkit", "--install-completion", shell]
    done = subprocess.run(command, cwd=REPO_ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / place}\n")
    script = (tmp_path / place).read_text().strip()
    shown = subprocess.run([*command[:3], "--show-completion", shell], cwd=REPO_ROOT, capture_output=True, text=True)
    assert shown.stdout.strip() == script
    assert "_LLMKIT_COMPLETE=complete_" in script


def test_an_unknown_shell() -> None:
    command = [sys.executable, "-m", "llmkit", "--show-completion", "tcsh"]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "error: --show-completion: the shell is tcsh; one of bash, zsh, fish is expected\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_tab_in_bash(cache: Path) -> None:
    """The script that is installed, in a real shell at a terminal; for bash a colon ends a word."""
    (cache / "llmkit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llmkit "$@"\n')
    (cache / "llmkit").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{cache}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPO_ROOT),
        "PS1": "$ ",
        "TERM": "dumb",
    }
    bash = pexpect.spawn(
        "bash", ["--norc"], cwd=str(cache), env=env, encoding="utf-8", timeout=60, dimensions=(24, 200)
    )
    bash.sendline("source <(llmkit --show-completion bash); echo rea''dy")
    bash.expect_exact("ready")
    for typed, completed in (
        ("llmkit pas", "llmkit passkey "),
        ("llmkit run -m smol", "llmkit run -m smollm2-135m "),
        ("llmkit run -m hf:", "llmkit run -m hf:user/some-repo "),
        ("llmkit run -m hf:us", "llmkit run -m hf:user/some-repo "),
        ("llmkit bench --n-p", "llmkit bench --n-prompt "),
    ):
        bash.send(f"{typed}\t")
        bash.expect_exact(completed)
        bash.sendcontrol("u")
    bash.close(force=True)
