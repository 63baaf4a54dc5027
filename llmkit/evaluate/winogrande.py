"""WinoGrande: which of two words fills the blank, in llama.cpp's CSV format.

A line a task: index, sentence with `_` for the blank (in quotes if it has commas), choice 1, choice 2, answer (1 or 2).
A choice's score is the mean log-probability of what follows the blank, without the last token, or of all that differs
if little follows.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmkit.evaluate.choices import Choices, check_fits, choice_log_probs, mean_log_prob, split_choices
from llmkit.evaluate.cpp_random import draw_scaled
from llmkit.evaluate.errors import TaskFileError
from llmkit.evaluate.rows import Stop, never
from llmkit.evaluate.text import Encoder, encode_text

if TYPE_CHECKING:
    from llmkit.engine.context import Context

_MIN_TRAILING = 3  # tokens that must follow the shared ones for the choice itself to be left out


@dataclass(frozen=True)
class WinograndeTask:
    """What stands before and after the blank, the two choices, and the right one's number, 1 or 2."""

    before: str
    after: str
    choices: tuple[str, str]
    answer: int

    def text(self, choice: int) -> str:
        """The sentence with a choice (0 or 1) filled in."""
        return self.before + self.choices[choice] + self.after


@dataclass(frozen=True)
class WinograndeScore:
    """After n tasks: how many were right; of the last one, the scores, the number chosen and the right one."""

    n: int
    n_right: int
    scores: tuple[float, float]
    chosen: int
    answer: int

    @property
    def accuracy(self) -> float:
        """Share of tasks."""
        return self.n_right / self.n

    @property
    def error(self) -> float:
        """Standard error of the accuracy."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / (self.n - 1)) if self.n > 1 else 0.0


def parse_winogrande(text: str) -> list[WinograndeTask]:
    """All tasks of a file. TaskFileError names the line that is wrong."""
    return [_parse_line(i, line) for i, line in enumerate(text.splitlines(), start=1) if line.strip()]


def _parse_line(number: int, line: str) -> WinograndeTask:
    fields = next(csv.reader([line]))
    if len(fields) != 5:
        message = f"line {number} has {len(fields)} fields; five are expected"
        raise TaskFileError(message, "a line is: index, sentence, choice 1, choice 2, answer")
    _, sentence, first, second, answer = fields
    before, blank, after = sentence.partition("_")
    if not blank:
        raise TaskFileError(f"line {number} has no `_` in its sentence", "the blank is written as _")
    if answer.strip() not in ("1", "2"):
        raise TaskFileError(f"line {number} has the answer {answer!r}; 1 or 2 is expected")
    return WinograndeTask(before, after, (first, second), int(answer))


def winogrande(
    ctx: "Context", tokenizer: Encoder, tasks: list[WinograndeTask], n_tasks: int, stop: Stop = never
) -> Iterator[WinograndeScore]:
    """The score after each of n_tasks random tasks, or of all in order if that is 0 or more than there are."""
    chosen = tasks
    if 0 < n_tasks < len(tasks):
        chosen = [tasks[i] for i in draw_scaled(len(tasks), n_tasks)]
    choices = [split_choices([encode_text(tokenizer, task.text(k)).tolist() for k in (0, 1)]) for task in chosen]
    check_fits(choices, ctx.n_ctx)
    n_right = 0
    results = choice_log_probs(ctx, choices, stop)
    for n, (task, choice, tails) in enumerate(zip(chosen, choices, results, strict=False), start=1):
        starts = _starts(tokenizer, task, choice)
        # The last token, mostly a full stop, is left out where another one remains.
        ends = [len(tail) - (len(tail) - start > 1) for tail, start in zip(choice.tails, starts, strict=True)]
        first, second = (mean_log_prob(tails[k][starts[k] : ends[k]]) for k in (0, 1))
        best = 1 if first > second else 2
        n_right += best == task.answer
        yield WinograndeScore(n, n_right, (first, second), best, task.answer)


def _starts(tokenizer: Encoder, task: WinograndeTask, choice: Choices) -> list[int]:
    """Where in each tail the scored tokens begin: after the choice, if enough follow the shared ones."""
    if min(len(tail) for tail in choice.tails) <= _MIN_TRAILING:
        return [0, 0]
    n_before = [len(encode_text(tokenizer, task.before + task.choices[k])) for k in (0, 1)]
    return [min(max(0, n - len(choice.prefix)), len(tail) - 1) for n, tail in zip(n_before, choice.tails, strict=True)]
