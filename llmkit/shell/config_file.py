"""The configuration file: where it is, and what it says, with the line of each value.

Owns its place (`--config`, LLMKIT_CONFIG, else config.toml in the user's configuration folder) and its form: TOML,
whose top level and [defaults] hold for every command, and whose table [COMMAND] holds for one. Knows no options.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from llmkit.errors import UsageError

DEFAULTS = "defaults"


@dataclass(frozen=True)
class Entry:
    """A key of the file. `key` has dashes; `table` is "" for the top level; `place` says where it stands."""

    table: str
    key: str
    value: Any
    place: str


@dataclass(frozen=True)
class ConfigFile:
    """What a file says: its path and its entries, in the file's order."""

    path: Path
    entries: tuple[Entry, ...] = ()

    def of(self, command: str) -> list[Entry]:
        """What holds for a command: its own entries first, then those that hold for all."""
        own = [entry for entry in self.entries if entry.table == command]
        return own + [entry for entry in self.entries if entry.table in ("", DEFAULTS)]


def config_path(named: str | None) -> tuple[Path | None, bool]:
    """The file to read, and whether somebody asked for it; None when LLMKIT_CONFIG is set to nothing."""
    if named is None:
        named = os.environ.get("LLMKIT_CONFIG")
    if named is not None:
        return (Path(named).expanduser(), True) if named else (None, False)
    from platformdirs import user_config_path

    return user_config_path("llmkit", appauthor=False) / "config.toml", False


def read_config(named: str | None, commands: Sequence[str]) -> ConfigFile | None:
    """The configuration; None if there is none. UsageError for a file that was named and cannot be read, that is no
    TOML, or that has a table for no command."""
    path, asked = config_path(named)
    if path is None or not (asked or path.exists()):
        return None
    import tomllib

    try:
        text = path.read_bytes().decode("utf-8")
        tables = tomllib.loads(text)
    except FileNotFoundError:
        raise UsageError(f"there is no configuration file {path}", "see docs/configuration.md") from None
    except OSError as exc:
        raise UsageError(f"cannot read the configuration file {path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise UsageError(f"the configuration file {path} is no TOML: {exc}", "see docs/configuration.md") from exc
    return ConfigFile(path, tuple(_entries(path, text, tables, commands)))


def _entries(path: Path, text: str, tables: dict[str, Any], commands: Sequence[str]) -> Iterator[Entry]:
    for key, value in tables.items():
        if not isinstance(value, dict):
            yield Entry("", key.replace("_", "-"), value, _place(path, text, "", key))
            continue
        table = key.replace("_", "-")
        if table not in (*commands, DEFAULTS):
            close = get_close_matches(table, [*commands, DEFAULTS], n=1)
            guess = f"did you mean [{close[0]}]?" if close else "tables are [defaults] and the commands' names"
            raise UsageError(f"{_place(path, text, key, None)}: there is no command {key!r}", guess)
        for name, inner in value.items():
            yield Entry(table, name.replace("_", "-"), inner, _place(path, text, key, name))


def _place(path: Path, text: str, table: str, key: str | None) -> str:
    """`config.toml, line 3: [run] ctx-size`, without the line if it cannot be found."""
    what = " ".join(part for part in (f"[{table}]" if table else "", key or "") if part)
    line = _line_of(text, table, key)
    return f"{path}{f', line {line}' if line else ''}: {what}"


def _line_of(text: str, table: str, key: str | None) -> int:
    """The line, from 1, on which a key of a table (or the table's head, for None) stands; 0 if it is not plain."""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[\s*([\w\"'-]+)\s*\]", line):
            current = head.group(1).strip("\"'")
            if current == table and key is None:
                return number
        elif current == table and key is not None and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return 0
