"""What llmkit shows: results on stdout, everything else on stderr and in the log file. The only place that prints.

Owns the two streams, the log file, the quiet and verbose levels, colours, and the look of progress. Knows nothing about
models or commands.
Results are never mixed with messages, so `llmkit ... > file` and `llmkit ... | program` always carry the answer alone.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Protocol, Self, TextIO

from llmkit.errors import OutputError, UsageError


class Level(IntEnum):
    """How much goes to stderr. Warnings and errors always do."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


class _State:
    """The level, when there are colours, the log file, and whether the last piece streamed to a terminal left its line
    open."""

    level = Level.NORMAL
    color = "auto"
    log: TextIO | None = None
    line_is_open = False


RED, YELLOW, GREEN, CYAN, BOLD = "31", "33", "32", "36", "1"
"""Colours for `painted`: parameters of the terminal's sequence "set graphics"."""


def set_level(*, quiet: bool = False, verbose: bool = False) -> None:
    """Choose what `note` and `detail` show; quiet wins over verbose."""
    _State.level = Level.QUIET if quiet else Level.VERBOSE if verbose else Level.NORMAL


def level() -> Level:
    """The level in force."""
    return _State.level


def set_color(when: str) -> None:
    """`on`, `off`, or `auto`: on a terminal, unless NO_COLOR says no. UsageError for anything else."""
    if when not in ("on", "off", "auto"):
        raise UsageError(f"--color is {when!r}; on, off or auto is expected")
    _State.color = when


def painted(text: str, color: str, file: TextIO | None = None) -> str:
    """The text in a colour, or as it is where there are no colours; `file` is where it goes, by default stdout."""
    return f"\x1b[{color}m{text}\x1b[0m" if text and _has_colors(file or sys.stdout) else text


def _has_colors(file: TextIO | None) -> bool:
    if _State.color != "auto":
        return _State.color == "on"
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and _is_terminal(file)


def open_log(path: str) -> None:
    """From now on, append what goes to stderr to this file too; OutputError if it cannot be written."""
    close_log()
    try:
        _State.log = open(path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    except OSError as exc:
        message = f"cannot write the log file {path}: {exc.strerror}"
        raise OutputError(message, "choose another with --log-file") from exc


def close_log() -> None:
    """End the log file, if there is one."""
    if _State.log is not None:
        with contextlib.suppress(OSError):
            _State.log.close()
        _State.log = None


def _to_log(message: str) -> None:
    """Each line with the time, in one write, so that several programs may share a file. It must not end the work."""
    if _State.log is not None and message:
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(now))}.{int(now * 1000) % 1000:03d}"
        stamp += time.strftime("%z", time.localtime(now))
        with contextlib.suppress(OSError, ValueError):
            _State.log.write("".join(f"{stamp} {line}\n" for line in message.splitlines()))
            _State.log.flush()


def result(text: str = "", end: str = "\n") -> None:
    """Write one whole result to stdout."""
    print(text, end=end)
    _State.line_is_open = False


def stream(piece: str) -> None:
    """Write a piece of a growing result to stdout and flush it, so that a reader sees it at once."""
    if piece:
        print(piece, end="", flush=True)
        _State.line_is_open = _is_terminal(sys.stdout) and not piece.endswith("\n")


def style(code: str) -> None:
    """Write a terminal's escape sequence to stdout; it is no text, so whether a line is open does not change."""
    if code:
        print(code, end="", flush=True)


def result_json(value: object) -> None:
    """Write `value` to stdout as one line of JSON; ValueError on NaN and infinity, which JSON has no word for."""
    result(json.dumps(value, ensure_ascii=False, allow_nan=False))


def result_table(rows: Iterable[Sequence[object]], headers: Sequence[str]) -> None:
    """Write a table to stdout; numbers are shown as given."""
    from tabulate import tabulate

    result(tabulate(list(rows), headers=list(headers), disable_numparse=True))


def stream_stderr(text: str) -> None:
    """Write text that was asked for to stderr as it is, in quiet mode too."""
    _to_log(text)
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(text, end="", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Say something on stderr that a person wants to know (what is going on, timings); not in quiet mode."""
    if _State.level >= Level.NORMAL:
        _to_stderr(message)


def detail(message: str) -> None:
    """Say something on stderr in verbose mode only."""
    if _State.level >= Level.VERBOSE:
        _to_stderr(message)


def warning(message: str) -> None:
    """Warn on stderr, in quiet mode too."""
    _to_stderr(message, "warning", YELLOW)


def error(message: str, hint: str = "") -> None:
    """Say what went wrong in one line on stderr, and what to do about it in a second one."""
    _to_stderr(message, "error", RED)
    if hint:
        _to_stderr(hint, "hint", CYAN)


class Progress(Protocol):
    """Shows how far something is; used as `with progress(...) as bar: bar.update(n_more)`."""

    def update(self, n: int) -> None:
        """Count `n` more units as done; negative when work was lost."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def progress(label: str, total: int, unit: str = "B") -> Progress:
    """A bar on a terminal, a line now and then in the log file, nothing elsewhere. `unit` gets k, M, G."""
    if _State.level == Level.QUIET or sys.stderr is None:
        return _NoProgress()
    if _is_terminal(sys.stderr):
        return _Bar(label, total, unit)
    return _NoProgress() if _State.log is None else _Lines(label, total)


class _NoProgress:
    def update(self, n: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class _Bar(_NoProgress):
    def __init__(self, label: str, total: int, unit: str) -> None:
        from tqdm import tqdm

        self._lines = _Lines(label, total)
        self._bar = tqdm(
            total=total, desc=label, unit=unit, unit_scale=True, file=sys.stderr, leave=False, dynamic_ncols=True
        )

    def update(self, n: int) -> None:
        self._bar.update(n)
        self._lines.update(n)

    def __exit__(self, *exc: object) -> None:
        self._bar.close()


class _Lines(_NoProgress):
    """For the log file: nothing at all when the work is over within one interval."""

    INTERVAL_S = 5.0

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = total
        self._n = 0
        self._next = time.monotonic() + self.INTERVAL_S

    def update(self, n: int) -> None:
        self._n += n
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self.INTERVAL_S
            _to_log(f"{self._label}: {100 * self._n // max(self._total, 1)}%")


def _is_terminal(file: TextIO | None) -> bool:
    return file is not None and not file.closed and file.isatty()


def _to_stderr(message: str, kind: str = "", color: str = "") -> None:
    """Drop a message that cannot be shown (stderr is closed, or its reader has gone): it must not end the work."""
    _to_log(f"{kind}: {message}" if kind else message)
    if sys.stderr is None:
        return
    if kind:
        message = f"{painted(f'{kind}:', f'{BOLD};{color}', sys.stderr)} {message}"
    if _State.line_is_open and _is_terminal(sys.stderr):
        message = "\n" + message
    _State.line_is_open = False
    with contextlib.suppress(OSError, ValueError):
        print(message, file=sys.stderr, flush=True)
