"""What llama.cpp's flags are called, how many values they take, their environment variables, and what llmkit makes of
those that it does not have: they are ignored with a notice, or refused with a reason.

Owns the table llama_flags.json, read from the help texts of llama.cpp's tools (build 11434). Knows nothing of which
options a command has: what a command implements itself is looked for there first, and never reaches this table.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("llama_flags.json")

EVERY_TOOL = "all"
"""A flag with this has it in all tools but llama-bench, which reads its options by itself."""

TOOLS: dict[str, tuple[str, ...]] = {
    "run": ("completion", "cli", "batched"),
    "state-load": ("completion", "cli", "batched"),
    "state-save": ("completion",),
    "serve": ("server",),
    "bench": ("bench",),
    "batched-bench": ("batched-bench",),
    "perplexity": ("perplexity",),
    "compare": ("perplexity",),
    "passkey": ("passkey",),
    "tokenize": ("tokenize",),
    "imatrix": ("imatrix",),
    "embedding": ("embedding",),
    "save-load-state": ("completion",),
}
"""The tools of llama.cpp that a command stands for; scripts written for them shall run."""

NO_SAMPLING = "this command chooses no tokens"


@dataclass(frozen=True)
class Flag:
    """One of llama.cpp's flags: its names, how many values follow (an `optional` one may be missing), its variable.

    ignored, refused: why llmkit has no such option; at most one is given, neither for those that some command has.
    """

    names: tuple[str, ...]
    n_values: int
    tools: tuple[str, ...]
    optional: bool = False
    env: str = ""
    group: str = ""
    ignored: str = ""
    refused: str = ""

    def in_tools(self, tools: tuple[str, ...]) -> bool:
        """Whether one of these tools has the flag."""
        return any(tool in self.tools or (EVERY_TOOL in self.tools and tool != "bench") for tool in tools)


@cache
def all_flags() -> tuple[Flag, ...]:
    """The whole table."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(Flag(**{**row, "names": tuple(row["names"]), "tools": _tools(row["tools"])}) for row in rows)


def _tools(tools: str | list[str]) -> tuple[str, ...]:
    return (tools,) if isinstance(tools, str) else tuple(tools)


class CommandFlags:
    """The table as one command sees it: the flags of the tools that it stands for."""

    def __init__(self, command: str) -> None:
        tools = TOOLS.get(command, ())
        self._by_name = {name: flag for flag in all_flags() if flag.in_tools(tools) for name in flag.names}

    def find(self, name: str) -> Flag | None:
        """The flag with this name, written with dashes; of other tools only those that llmkit has nowhere."""
        refused = (flag for flag in all_flags() if flag.refused and name in flag.names)
        return self._by_name.get(name) or next(refused, None)

    def ignored(self) -> list[Flag]:
        """Those that mean nothing here."""
        return [flag for flag in dict.fromkeys(self._by_name.values()) if flag.ignored]

    def refused(self) -> list[Flag]:
        """Those that would change a result if llmkit had them."""
        return [flag for flag in dict.fromkeys(self._by_name.values()) if flag.refused]


def variable_of(names: list[str]) -> str:
    """The environment variable in which llama.cpp looks for the option with one of these names; "" if there is none.

    Long names decide: -n is something else to llama-bench than to the other tools.
    """
    wanted = {name for name in names if name.startswith("--")}
    return next((flag.env for flag in all_flags() if flag.env and wanted & set(flag.names)), "")


def takes_optional(name: str) -> bool:
    """Whether the value of this option may be missing, which means on."""
    return any(flag.optional for flag in all_flags() if name in flag.names)
