"""Several models over the same windows, side by side: perplexity of each, and its divergence from the first.

Owns the lockstep: each pass goes through all models before the next one, so that logits are compared where they are and
none are kept. Equal models diverge by exactly 0.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmkit.evaluate.errors import VocabularyError
from llmkit.evaluate.kl_divergence import KlStatistics
from llmkit.evaluate.rows import Stop, by_window, never, window_logits
from llmkit.evaluate.scores import RowScores
from llmkit.evaluate.windows import Windows

if TYPE_CHECKING:
    from llmkit.engine.context import Context

Doubles = NDArray[np.float64]


@dataclass
class ModelScore:
    """What is known of one model: statistics against the first, and the time that its tokens took."""

    statistics: KlStatistics = field(default_factory=KlStatistics)
    n_tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens computed per second, half of them with logits."""
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0


def check_same_tokens(names: list[str], tokens: list[NDArray[np.int32]], n_vocabs: list[int]) -> None:
    """VocabularyError unless all models have as many tokens and cut the text into the same ones."""
    for name, ids, n_vocab in zip(names, tokens, n_vocabs, strict=True):
        if n_vocab != n_vocabs[0]:
            message = f"{names[0]} has {n_vocabs[0]} tokens and {name} has {n_vocab}"
            raise VocabularyError(message, "only models with one vocabulary can be compared")
        if not np.array_equal(ids, tokens[0]):
            message = f"{names[0]} and {name} cut the text into different tokens"
            raise VocabularyError(message, "only models with one vocabulary can be compared")


def compare(
    contexts: "list[Context]", windows: Windows, n_seq: int, results: list[ModelScore], stop: Stop = never
) -> Iterator[int]:
    """Adds to the results, one for each context, window by window; yields how many windows are done."""
    for i, tokens in by_window(_rows(contexts, windows, n_seq, stop, results), windows.n_scored):
        for k, result in enumerate(results):
            result.statistics.add(tokens[:, 4 * k : 4 * k + 4])
            result.n_tokens += windows.length - 1
        yield i + 1


def _rows(
    contexts: "list[Context]", windows: Windows, n_seq: int, stop: Stop, results: list[ModelScore]
) -> Iterator[tuple[int, Doubles]]:
    """Columns 4 i .. 4 i + 4 are model i's, as KlStatistics takes them."""
    scores = [RowScores(ctx) for ctx in contexts]
    runs = [window_logits(ctx, windows, n_seq, stop) for ctx in contexts]
    try:
        while all(steps := [_timed_next(run, result) for run, result in zip(runs, results, strict=True)]):
            rows = [step for step in steps if step is not None]
            yield rows[0][0], _compared(scores, [logits for _, logits in rows], windows, rows[0][0])
    finally:
        for run in runs:
            run.close()  # type: ignore[attr-defined]


def _timed_next(
    run: Iterator[tuple[int, NDArray[np.float32]]], result: ModelScore
) -> tuple[int, NDArray[np.float32]] | None:
    began = time.perf_counter()
    step = next(run, None)
    result.seconds += time.perf_counter() - began
    return step


def _compared(scores: list[RowScores], logits: list[NDArray[np.float32]], windows: Windows, row: int) -> Doubles:
    targets = windows.targets(row, len(logits[0]))
    statistics = [score.statistics(rows) for score, rows in zip(scores, logits, strict=True)]
    base_nll = scores[0].nll(logits[0], statistics[0], targets)
    columns = []
    for score, rows, own in zip(scores, logits, statistics, strict=True):
        kld = score.divergence(rows, own, logits[0], statistics[0])
        columns += [score.nll(rows, own, targets), base_nll, kld, own[:, 1] == statistics[0][:, 1]]
    return np.stack(columns, axis=1)
