"""Questions with any number of answers (ARC, MMLU, TruthfulQA), in llama.cpp's binary format.

Little-endian: u32 n_tasks; u32 position of each task in the file; then the tasks: the question, and two sets of
answers, of which the first (one right answer) counts. A string is u32 length and bytes; a set is u32 n (at most 100), n
strings, and n i32 that are 1 for a right answer. An answer's score is its mean log-probability after the question and a
space.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmkit.evaluate.choices import check_fits, choice_log_probs, mean_log_prob, split_choices
from llmkit.evaluate.cpp_random import draw_scaled
from llmkit.evaluate.errors import TaskFileError
from llmkit.evaluate.rows import Stop, never
from llmkit.evaluate.text import Encoder, encode_text

if TYPE_CHECKING:
    from llmkit.engine.context import Context

MAX_ANSWERS = 100
_HINT = "the file is damaged or no file of multiple-choice tasks; -f takes it as it is, without changing line ends"


@dataclass(frozen=True)
class MultipleChoiceTask:
    """A question, its answers, and for each 1 if it is right."""

    question: str
    answers: list[str]
    labels: list[int]


@dataclass(frozen=True)
class MultipleChoiceScore:
    """After n tasks: how many were right, and how many answers they had together."""

    n: int
    n_right: int
    n_answers: int

    @property
    def accuracy(self) -> float:
        """Share of tasks."""
        return self.n_right / self.n

    @property
    def error(self) -> float:
        """Standard error of the accuracy."""
        return self._error(self.accuracy)

    @property
    def chance(self) -> float:
        """Accuracy of guessing."""
        return self.n / self.n_answers

    @property
    def chance_error(self) -> float:
        """Its standard error."""
        return self._error(self.chance)

    def _error(self, p: float) -> float:
        return math.sqrt(p * (1 - p) / (self.n - 1)) if self.n > 1 else 0.0


class _Bytes:
    """Reads from `at` on; TaskFileError at the end of the data."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, n: int) -> bytes:
        """The next n bytes."""
        if n > len(self.data) - self.at:
            raise TaskFileError(f"the file ends within a task, at byte {len(self.data)}", _HINT)
        self.at += n
        return self.data[self.at - n : self.at]

    def u32(self) -> int:
        """The next number."""
        return int.from_bytes(self.take(4), "little")

    def text(self) -> str:
        """The next string."""
        raw = self.take(self.u32())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TaskFileError(f"the text before byte {self.at} is not UTF-8", _HINT) from error

    def answers(self) -> tuple[list[str], list[int]]:
        """The next set of answers, with labels."""
        n = self.u32()
        if n > MAX_ANSWERS:
            raise TaskFileError(f"a task at byte {self.at} has {n} answers; at most {MAX_ANSWERS} are expected", _HINT)
        texts = [self.text() for _ in range(n)]
        return texts, list(struct.unpack(f"<{n}i", self.take(4 * n)))


def parse_multiple_choice(data: bytes, n_wanted: int) -> list[MultipleChoiceTask]:
    """n_wanted random tasks, or all in order if that is 0 or more than there are. TaskFileError says what is wrong."""
    head = _Bytes(data, 0)
    n = head.u32() if len(data) >= 4 else 0
    if n == 0:
        raise TaskFileError("the file has no tasks", _HINT)
    positions = struct.unpack(f"<{n}I", head.take(4 * n))
    if not 0 < n_wanted < n:
        return [_parse_task(head, i) for i in range(n)]
    return [_parse_task(_Bytes(data, positions[i]), i) for i in draw_scaled(n, n_wanted)]


def _parse_task(source: _Bytes, i: int) -> MultipleChoiceTask:
    question = source.text()
    answers, labels = source.answers()
    source.answers()
    if not question or not answers or not all(answers):
        raise TaskFileError(f"task {i + 1} has an empty question or answer", _HINT)
    return MultipleChoiceTask(question, answers, labels)


def multiple_choice(
    ctx: "Context", tokenizer: Encoder, tasks: list[MultipleChoiceTask], stop: Stop = never
) -> Iterator[MultipleChoiceScore]:
    """The score after each task."""
    choices = [
        split_choices([encode_text(tokenizer, f"{task.question} {answer}").tolist() for answer in task.answers])
        for task in tasks
    ]
    check_fits(choices, ctx.n_ctx)
    n_right = n_answers = 0
    for n, (task, tails) in enumerate(zip(tasks, choice_log_probs(ctx, choices, stop), strict=False), start=1):
        means = [mean_log_prob(log_probs) for log_probs in tails]
        n_right += task.labels[means.index(max(means))] == 1
        n_answers += len(means)
        yield MultipleChoiceScore(n, n_right, n_answers)
