"""The pages of docs/commands say what the commands say: each holds the command's --help, word for word.

`python -m tests.test_docs` writes the help texts into the pages.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llmkit import cli
from tests.paths import REPO_ROOT

PAGES = REPO_ROOT / "docs" / "commands"


def help_of(name: str) -> str:
    """What `llmkit NAME --help` prints, 80 columns wide."""
    done = subprocess.run(
        [sys.executable, "-m", "llmkit", name, "--help"],
        cwd=REPO_ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def with_help(page: Path) -> str:
    """The page with the command's present help in its block, which is added at the end when there is none."""
    name = page.stem
    block = f"```text\n$ llmkit {name} --help\n{help_of(name)}\n```"
    pattern = rf"```text\n\$ llmkit {name} --help\n.*?```"
    text, n = re.subn(pattern, lambda found: block, page.read_text(encoding="utf-8"), count=1, flags=re.DOTALL)
    return text if n else f"{text.rstrip()}\n\n## Options\n\n{block}\n"


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_a_page_with_its_help(name: str) -> None:
    page = PAGES / f"{name}.md"
    assert page.read_text(encoding="utf-8") == with_help(page), "run `python -m tests.test_docs`"


def test_every_page_has_a_command() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} <= set(cli.COMMANDS)


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(with_help(path), encoding="utf-8")
