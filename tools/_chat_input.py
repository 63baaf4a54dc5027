"""Where a conversation's messages come from: a person at a terminal, or lines that are piped in.

Owns reading, line editing (readline's) and the history of what was typed. Knows nothing of what a message means.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from llmkit import report
from llmkit.errors import UsageError

HISTORY_ENTRIES = 1000


class Reader(Protocol):
    """Gives message after message, and None when there are no more."""

    multiline: bool

    def read(self) -> str | None: ...


class PipedLines:
    """A message a line; one that ends in a backslash goes on in the next. Empty lines are none."""

    def __init__(self, multiline: bool = False) -> None:
        self.multiline = multiline

    def read(self) -> str | None:
        """The next message. UsageError if stdin is closed or not UTF-8."""
        while (text := _joined(self._line, self.multiline)) == "":
            continue
        return text

    def _line(self, is_first: bool) -> str | None:
        if sys.stdin is None:
            return None
        raw = sys.stdin.buffer.readline()
        try:
            return raw.decode("utf-8").removesuffix("\n").removesuffix("\r") if raw else None
        except UnicodeDecodeError as error:
            message = f"a line from stdin is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}"
            raise UsageError(message, "Convert it first, for example with `iconv -t UTF-8`.") from error


class Terminal:
    """What a person types after `> `, with the keys of readline; Ctrl-D ends. KeyboardInterrupt passes through."""

    def __init__(self, multiline: bool, history: "History | None") -> None:
        self.multiline, self._history = multiline, history
        self._typed, _, self._plain = report.painted("|", f"{report.BOLD};{report.GREEN}").partition("|")
        self._readline = _readline()
        if self._readline is not None:
            self._readline.set_auto_history(False)
            for entry in history.entries() if history else []:
                self._readline.add_history(entry)

    def read(self) -> str | None:
        """The next message; what is typed goes into the history."""
        text = _joined(self._line, self.multiline)
        if text is None:
            report.stream("\n")
            return None
        if text.strip():
            if self._readline is not None:
                self._readline.add_history(text)
            if self._history is not None:
                self._history.add(text)
        return text

    def _line(self, is_first: bool) -> str | None:
        prompt = "> " if is_first else "  "
        if self._typed:  # the brackets tell readline what takes no room on the line
            prompt = f"\x01{self._typed}\x02{prompt}" if self._readline is not None else self._typed + prompt
        try:
            return input(prompt).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except EOFError:
            return None
        finally:
            report.style(self._plain)


def _readline() -> Any:
    try:
        import readline
    except ImportError:
        return None
    return readline


def _joined(line: Callable[[bool], str | None], multiline: bool) -> str | None:
    r"""A message of one or more lines: a \ at a line's end continues it, or with `multiline` ends it. Commands, which
    begin with a slash, are one line always. None when there is nothing more.
    """
    lines: list[str] = []
    while (text := line(not lines)) is not None:
        marked = text.endswith("\\")
        lines.append(text[:-1] if marked else text)
        if marked == multiline or (len(lines) == 1 and multiline and text.startswith("/")):
            return "\n".join(lines)
    return "\n".join(lines) if lines else None


class History:
    """What was typed, a JSON string a line, in a file that its owner alone can read; the last 1,000 entries count.

    A file that cannot be read or written is no reason to stop talking.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> list[str]:
        """The last entries, oldest first. A file twice too long is shortened."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return []
        if len(lines) > 2 * HISTORY_ENTRIES:
            self._shorten(lines[-HISTORY_ENTRIES:])
        return [entry for line in lines[-HISTORY_ENTRIES:] if isinstance(entry := _string(line), str)]

    def add(self, text: str) -> None:
        """Adds an entry at the end."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(text) + "\n")
        except OSError as error:
            report.detail(f"the history is not kept: {error}")

    def _shorten(self, lines: list[str]) -> None:
        from llmkit.files.atomic import write_atomic

        try:
            write_atomic(self._path, "".join(line + "\n" for line in lines).encode())
        except OSError as error:
            report.detail(f"the history is not shortened: {error}")


def _string(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def history_path() -> Path:
    """chat_history in the user's data folder (on Linux ~/.local/share/llmkit, or below $XDG_DATA_HOME)."""
    from platformdirs import user_data_path

    return user_data_path("llmkit", appauthor=False) / "chat_history"
