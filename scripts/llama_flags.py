#!/usr/bin/env python3
"""scripts/llama_flags.py FOLDER: how llmkit/shell/llama_flags.json differs from the tools of llama.cpp in FOLDER.

Reads the tools' help texts. Prints flags that the table lacks, those that no tool has any more, and changed variables
or numbers of values; exit code 2 if there are any. What llmkit makes of a new flag is for a person to decide: the
table's rows say `ignored` or `refused` with the reason, or neither for what a command has. Rows that stand in no help
text (what llama.cpp removed, and llama-bench's own) are left alone.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmkit.shell.llama_flags import EVERY_TOOL, Flag, all_flags

TOOLS = (
    *("completion", "cli", "server", "perplexity", "batched-bench", "imatrix"),
    *("passkey", "tokenize", "batched", "embedding"),
)
NOT_OURS = {"--help", "--version"}
REMOVED = {"--mmap", "--mlock"}
"""llama.cpp has them no more; scripts still do."""

INDENT = " " * 30
DESCRIPTION_COLUMN = 40


@dataclass
class Found:
    """A flag in a help text."""

    names: tuple[str, ...]
    n_values: int
    env: str


def help_text(folder: Path, tool: str) -> str:
    """What a tool says of itself; its libraries lie beside it."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run([folder / f"llama-{tool}", "--help"], env=env, capture_output=True, text=True, timeout=60)
    return done.stdout


def flags_in(text: str) -> Iterator[Found]:
    """Each entry begins in the first column; what follows is far to the right."""
    for entry in re.findall(rf"^-[^\n]*(?:\n{INDENT}[^\n]*)*", text, re.MULTILINE):
        if entry.startswith("-----"):
            continue
        first, _, more = entry.partition("\n")
        cut = first[DESCRIPTION_COLUMN - 2 : DESCRIPTION_COLUMN].isspace()
        head = first[:DESCRIPTION_COLUMN] if cut or len(first) <= DESCRIPTION_COLUMN else first
        names = re.match(r"-[\w.-]+(?:\s*,\s*-[\w.-]+)*", head)
        assert names is not None, f"no names in {first!r}"
        value = head[names.end() :].strip()
        env = re.search(r"\(env: (\w+)\)", f"{first} {more}")
        n_values = 0 if not value else len(value.split()) if value == "START END" else 1
        yield Found(tuple(re.split(r"\s*,\s*", names[0])), n_values, env[1] if env else "")


def differences(folder: Path) -> Iterator[str]:
    """A line for each."""
    table = {name: flag for flag in all_flags() if "bench" not in flag.tools for name in flag.names}
    seen: set[str] = set()
    for tool in TOOLS:
        for found in flags_in(help_text(folder, tool)):
            if NOT_OURS & set(found.names):
                continue
            seen |= set(found.names)
            yield from _changes(found, tool, table)
    for name, flag in table.items():
        if name not in seen and not REMOVED & set(flag.names):
            yield f"gone: {name}"


def _changes(found: Found, tool: str, table: dict[str, Flag]) -> Iterator[str]:
    for name in found.names:
        flag = table.get(name)
        if flag is None:
            yield f"new in {tool}: {' '.join(found.names)}{f' ({found.env})' * bool(found.env)}"
            return
        if EVERY_TOOL not in flag.tools and tool not in flag.tools:
            yield f"new in {tool}: {name}, which others have"
        if flag.env != found.env:
            yield f"changed in {tool}: {name} has the variable {found.env or 'none'}, in the table {flag.env or 'none'}"
        if flag.n_values != found.n_values:
            yield f"changed in {tool}: {name} takes {found.n_values} values, in the table {flag.n_values}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    lines = list(dict.fromkeys(differences(Path(sys.argv[1]))))
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.exit(2 if lines else 0)
