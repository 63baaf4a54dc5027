"""What a sweep of `llmkit passkey` tries, and how it is shown: places of the key against lengths of the text.

Owns the table, the plot and the JSON. Knows nothing of how an answer comes about.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmkit.errors import OutputError
from llmkit.evaluate.passkey import PasskeyTask, choose_task

DEPTHS = (0, 25, 50, 75, 100)
"""Percent of the text before the key."""


@dataclass(frozen=True)
class Attempt:
    """A task, how many tokens its prompt has, and what the model said."""

    task: PasskeyTask
    n_tokens: int
    answer: str
    n_shifts: int
    seconds: float

    @property
    def found(self) -> bool:
        return self.task.is_found(self.answer)

    @property
    def depth(self) -> float:
        """Percent of the text before the key."""
        return 100 * self.task.pos / max(1, self.task.n_junk - 1)


def sweep_lengths(numbers: list[int]) -> list[int]:
    """Numbers of sentences: those given, or quarters of a single one."""
    if len(numbers) > 1:
        return sorted(set(numbers))
    return sorted({max(1, numbers[0] * i // 4) for i in range(1, 5)}) if numbers[0] > 0 else numbers


def sweep_tasks(lengths: list[int], seed: int) -> list[PasskeyTask]:
    """All lengths at all depths, the key of each from a seed of its own."""
    tasks = list[PasskeyTask]()
    for n_junk in lengths:
        for depth in DEPTHS:
            tasks.append(choose_task(n_junk, round(depth * (n_junk - 1) / 100), seed + len(tasks)))
    return tasks


def sweep_table(attempts: list[Attempt]) -> tuple[list[list[str]], list[str]]:
    """Rows of depths and columns of lengths in tokens, and the headers."""
    n = len(DEPTHS)
    columns = [attempts[i : i + n] for i in range(0, len(attempts), n)]
    rows = [
        [f"{depth} %", *(("found" if column[i].found else "-") if i < len(column) else "" for column in columns)]
        for i, depth in enumerate(DEPTHS)
    ]
    return rows, ["position", *(f"{max(a.n_tokens for a in column)} tokens" for column in columns)]


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """One attempt as numbers."""
    task = attempt.task
    return {
        "passkey": task.passkey,
        "n_junk": task.n_junk,
        "pos": task.pos,
        "n_tokens": attempt.n_tokens,
        "n_shifts": attempt.n_shifts,
        "answer": attempt.answer,
        "found": attempt.found,
        "seconds": round(attempt.seconds, 3),
    }


def need_folder_of(path: Path) -> None:
    """OutputError, before hours of a sweep, where its plot could not be written after."""
    if not path.parent.is_dir():
        raise OutputError(f"the plot cannot be written to {path}: there is no folder {path.parent}", "make it first")


def plot_sweep(attempts: list[Attempt], title: str, path: Path) -> None:
    """Length against depth, a square each: green where the key was found. OutputError if the file cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for found, colour, label in ((True, "tab:green", "found"), (False, "tab:red", "not found")):
        some = [a for a in attempts if a.found == found]
        if some:
            x, y = [a.n_tokens for a in some], [a.depth for a in some]
            axes.scatter(x, y, c=colour, marker="s", s=200, label=label)
    axes.set_xlabel("prompt, tokens")
    axes.set_ylabel("text before the key, %")
    axes.set_title(title)
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise OutputError(f"the plot cannot be written to {path}: {error}", "name a .png, .svg or .pdf file") from error
