"""The pages say what the commands say: each has the shape of a manual page, with what can be generated word for word.

`python -m tests.test_docs` writes into the pages of docs/commands the name, the usage, the help and the variables, and
into docs/configuration.md what llmkit makes of llama.cpp's flags.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from llmkit import cli
from llmkit.shell.llama_flags import TOOLS, Flag, all_flags
from llmkit.shell.settings import long_name, variables
from tests.paths import REPO_ROOT

PAGES = REPO_ROOT / "docs" / "commands"
CONFIGURATION = REPO_ROOT / "docs" / "configuration.md"

FIRST = ["Name", "Synopsis", "Description", "Options"]
LAST = ["Examples", "Exit codes", "Files", "Environment", "See also"]


@cache
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


def head_of(name: str) -> str:
    """The name, with what the command is for, and how it is called."""
    about = cli.COMMANDS[name].help
    usage = help_of(name).partition("\n\n")[0].removeprefix("Usage: ")
    return (
        f"## Name\n\nllmkit {name} - {about[0].lower()}{about[1:].rstrip('.')}\n\n## Synopsis\n\n```text\n{usage}\n```"
    )


def environment_of(name: str) -> str:
    """The variables that a command reads: llama.cpp's by name, ours by rule."""
    llamas = {long_name(option): variables(option)[1] for option in cli._build(name).options}
    rows = [f"`{variable}` (`{option}`)" for option, variable in llamas.items() if variable]
    lines = [
        "Each option has a variable, `LLMKIT_` and its long name: `LLMKIT_LOG_FILE` is `--log-file`.",
        f"llama.cpp's variables are read after those: {', '.join(rows)}." if rows else "",
        "`LLMKIT_CACHE` moves the cache, `LLMKIT_CONFIG` names the configuration file, `NO_COLOR` takes colours away,",
        "`LLMKIT_DEBUG=1` shows where an error comes from; [configuration](../configuration.md) tells their order.",
    ]
    return "## Environment\n\n" + "\n".join(filter(None, lines))


def flags_text() -> str:
    """The flags of llama.cpp that mean nothing here, and those that are refused, by reason."""

    def rows(reason: Callable[[Flag], str]) -> str:
        reasons: dict[str, list[str]] = {}
        for flag in all_flags():
            if reason(flag):
                names = reasons.setdefault(reason(flag), [])
                names += [f"`{name}`" for name in flag.names if f"`{name}`" not in names]
        return "\n".join(f"| {why} | {' '.join(names)} |" for why, names in reasons.items())

    tools = ", ".join(f"`{name}` ({', '.join(found)})" for name, found in TOOLS.items() if name in cli.COMMANDS)
    return (
        f"### Ignored, with a notice\n\n| because | flags |\n|---|---|\n{rows(lambda flag: flag.ignored)}\n\n"
        f"### Refused\n\n| because | flags |\n|---|---|\n{rows(lambda flag: flag.refused)}\n\n"
        f"They are looked for in the commands that stand for one of llama.cpp's tools: {tools}."
    )


def generated(text: str, block: str, content: str) -> str:
    """The text with this content between the marks of a block."""
    begin, end = f"<!-- generated: {block} -->", "<!-- end -->"
    assert begin in text, f"the page has no {begin}"
    pattern = rf"{re.escape(begin)}.*?{re.escape(end)}"
    return re.sub(pattern, lambda found: f"{begin}\n\n{content}\n\n{end}", text, count=1, flags=re.DOTALL)


def with_help(page: Path) -> str:
    """The page with all that is generated as it should be; a new page gets the shape."""
    name = page.stem
    text = page.read_text(encoding="utf-8")
    if "<!-- generated: head -->" not in text:
        text = shaped(name, text)
    block = f"```text\n$ llmkit {name} --help\n{help_of(name)}\n```"
    text = re.sub(rf"```text\n\$ llmkit {name} --help\n.*?```", lambda found: block, text, count=1, flags=re.DOTALL)
    return generated(generated(text, "head", head_of(name)), "environment", environment_of(name))


def shaped(name: str, text: str) -> str:
    """The sections of a page in the order of a manual page, those that are missing empty."""
    text = re.sub(rf"```text\n\$ llmkit {name} --help\n.*?```\n?", "", text.partition("\n")[2], flags=re.DOTALL)
    about, *rest = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    own = {"Description": about, **dict(zip(rest[::2], rest[1::2], strict=True))}
    own["Options"] = f"```text\n$ llmkit {name} --help\n```\n\n{own.get('Options', '')}"
    marks = {
        "Name": "<!-- generated: head -->\n<!-- end -->",
        "Environment": "<!-- generated: environment -->\n<!-- end -->",
    }
    others = [head for head in own if head not in (*FIRST, *LAST)]
    order = [head for head in (*FIRST, *others, *LAST) if head != "Synopsis"]
    parts = [marks.get(head) or f"## {head}\n\n{own.get(head, '').strip()}" for head in order]
    return "\n\n".join([f"# llmkit {name}", *parts]).rstrip() + "\n"


def sections(text: str) -> list[str]:
    """The heads of a page, without what stands in its examples."""
    return re.findall(r"^## (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_a_page_with_its_help(name: str) -> None:
    page = PAGES / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    assert text == with_help(page), "run `python -m tests.test_docs`"
    heads = sections(text)
    assert heads[:4] == FIRST
    assert heads[-5:] == LAST
    assert len(set(heads)) == len(heads)
    assert not re.search(r"^## .*\n\n+(## |\Z)", text, re.MULTILINE), "a section is empty"


def test_every_page_has_a_command() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} <= set(cli.COMMANDS)


def test_the_table_of_flags() -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    assert text == generated(text, "flags", flags_text()), "run `python -m tests.test_docs`"


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(with_help(path), encoding="utf-8")
    found = CONFIGURATION.read_text(encoding="utf-8")
    CONFIGURATION.write_text(generated(found, "flags", flags_text()), encoding="utf-8")
