"""HellaSwag: which of four endings goes on best, in llama.cpp's text format.

Six lines a task: the beginning, the number of the right ending (0 to 3), and the four endings. An ending's score is its
mean log-probability; the tasks come in llama.cpp's random order.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmkit.evaluate.choices import Choices, check_fits, choice_log_probs, mean_log_prob, split_choices
from llmkit.evaluate.cpp_random import draw_uniform
from llmkit.evaluate.errors import TaskFileError
from llmkit.evaluate.rows import Stop, never
from llmkit.evaluate.text import Encoder, encode_text

if TYPE_CHECKING:
    from llmkit.engine.context import Context

LINES, ENDINGS = 6, 4
_Z = 1.95996398454  # of a 95% interval


@dataclass(frozen=True)
class HellaswagTask:
    """A beginning, its endings, and the index of the right one."""

    context: str
    gold: int
    endings: list[str]


@dataclass(frozen=True)
class HellaswagScore:
    """After n tasks: how many were right."""

    n: int
    n_right: int

    @property
    def accuracy(self) -> float:
        """Share of tasks."""
        return self.n_right / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the accuracy (Wilson 1927, DOI 10.1080/01621459.1927.10502953)."""
        z, p = _Z * _Z / self.n, self.accuracy
        half = z * math.sqrt(self.n * (4 * p * (1 - p) + z)) / (2 * _Z)
        return (p + z / 2 - half) / (1 + z), (p + z / 2 + half) / (1 + z)


def parse_hellaswag(text: str) -> list[HellaswagTask]:
    """All tasks of a file. TaskFileError names the line that is wrong."""
    lines = text.split("\n")
    if len(lines) % LINES:
        message = f"the file has {len(lines)} lines; six for each task are expected"
        raise TaskFileError(message, "a task is a beginning, the number of the right ending, and four endings")
    tasks = []
    for i in range(0, len(lines), LINES):
        context, gold, *endings = lines[i : i + LINES]
        if gold.strip() not in ("0", "1", "2", "3"):
            raise TaskFileError(f"line {i + 2} is {gold!r}; the number of an ending, 0 to 3, is expected")
        tasks.append(HellaswagTask(context, int(gold), endings))
    return tasks


def hellaswag(
    ctx: "Context", tokenizer: Encoder, tasks: list[HellaswagTask], n_tasks: int, stop: Stop = never
) -> Iterator[HellaswagScore]:
    """The score after each of n_tasks tasks."""
    chosen = [tasks[i] for i in draw_uniform(len(tasks), n_tasks)]
    choices = [_choices(tokenizer, task) for task in chosen]
    check_fits(choices, ctx.n_ctx)
    n_right = 0
    for n, (task, tails) in enumerate(zip(chosen, choice_log_probs(ctx, choices, stop), strict=False), start=1):
        means = [mean_log_prob(log_probs) for log_probs in tails]
        n_right += means.index(max(means)) == task.gold
        yield HellaswagScore(n, n_right)


def _choices(tokenizer: Encoder, task: HellaswagTask) -> Choices:
    return split_choices([encode_text(tokenizer, f"{task.context} {ending}").tolist() for ending in task.endings])
