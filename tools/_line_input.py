"""The lines of stdin for `llmkit run --batch-lines`: read as they come, in a thread, a few ahead.

Owns bytes to questions: what a line of text and a JSON line may hold. Knows nothing of tokens.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from llmkit.errors import LlmkitError, UsageError
from llmkit.files.json_text import parse_json
from llmkit.params import MAX_SEED, RANDOM_SEED, UNTIL_STOPPED

MAX_LINE = 1 << 20
"""Bytes; a longer line is not answered."""

N_AHEAD = 64
"""Lines that are read before they are needed."""

_FIELDS = ("prompt", "id", "seed", "n_predict", "stop")


class BlankLine(LlmkitError):
    """A line that asks nothing: its answer is a blank line."""


@dataclass
class Question:
    """A line's text and, from a JSON line, what holds for it alone. `index` counts the lines of the input from 0."""

    index: int
    text: str = ""
    id: Any = None
    has_id: bool = False
    seed: int | None = None
    n_predict: int | None = None
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be answered, and why."""

    question: Question
    error: LlmkitError


class LineInput:
    """Reads lines in a thread of its own. `next` gives them in order; `ended` is true when there is no more."""

    def __init__(self, file: BinaryIO, *, as_json: bool, interrupted: Callable[[], bool]) -> None:
        self._as_json, self._interrupted = as_json, interrupted
        self.ended = False
        self._n_read = 0
        self._lines: queue.Queue[bytes | UsageError | None] = queue.Queue(N_AHEAD)
        # A daemon: it may wait for a line that never comes, when the answers have ended.
        threading.Thread(target=self._read, args=(file,), name="lines", daemon=True).start()

    def next(self, *, wait: bool) -> Question | BadLine | None:
        """The next question; None at the end, or without `wait` when none is there yet."""
        while not self.ended and not (wait and self._interrupted()):
            try:
                raw = self._lines.get(block=wait, timeout=0.1 if wait else None)
            except queue.Empty:
                if wait:
                    continue
                return None
            if raw is None:
                self.ended = True
                return None
            question = Question(self._n_read)
            self._n_read += 1
            if self._as_json and isinstance(raw, bytes) and not raw.strip():
                continue
            try:
                if isinstance(raw, UsageError):
                    raise raw
                _fill(question, _decode(raw), as_json=self._as_json)
            except LlmkitError as error:
                return BadLine(question, error)
            return question
        return None

    def _read(self, file: BinaryIO) -> None:
        try:
            while line := file.readline(MAX_LINE + 1):
                if len(line) > MAX_LINE and not line.endswith(b"\n"):
                    while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                        pass
                    self._lines.put(UsageError(f"the line is longer than {MAX_LINE} bytes"))
                else:
                    self._lines.put(line)
        except (OSError, ValueError) as error:
            self._lines.put(UsageError(f"stdin cannot be read: {error}"))
        self._lines.put(None)


def _decode(raw: bytes) -> str:
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"the line is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from error


def _fill(question: Question, line: str, *, as_json: bool) -> None:
    """Reads a line into a question, as far as it can be read: an error's answer still has the line's id."""
    if not as_json:
        if not line:
            raise BlankLine("the line is blank")
        question.text = line
        return
    try:
        value = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the line is no JSON: {error}", 'Give a text, "...", or an object with a prompt.') from error
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise UsageError("the line is neither a JSON text nor an object", f"An object's fields: {', '.join(_FIELDS)}.")
    question.has_id, question.id = "id" in value, value.get("id")
    if unknown := [name for name in value if name not in _FIELDS]:
        raise UsageError(f"there is no field {unknown[0][:40]!r}", f"There are {', '.join(_FIELDS)}.")
    if not isinstance(value.get("prompt"), str):
        raise UsageError("the line has no prompt, which is a text")
    question.text = value["prompt"]
    question.seed = _whole(value, "seed", RANDOM_SEED, MAX_SEED)
    question.n_predict = _whole(value, "n_predict", UNTIL_STOPPED, None)
    question.stops = _stops(value.get("stop"))


def _whole(value: dict[str, Any], name: str, low: int, high: int | None) -> int | None:
    given = value.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < low or (high is not None and given > high):
        raise UsageError(f"{name} is {str(given)[:40]}; a whole number of at least {low} is expected")
    return given


def _stops(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise UsageError("stop is neither a text nor a list of texts, none of them empty")
    return tuple(stops)
