"""Perplexity: e to the mean negative log-likelihood of the scored tokens, with its uncertainty.

Owns the sums, taken a window at a time so that they do not depend on how windows were computed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmkit.evaluate.logits_file import LogitsWriter
from llmkit.evaluate.rows import Stop, by_window, never, window_logits
from llmkit.evaluate.scores import RowScores
from llmkit.evaluate.windows import Windows

if TYPE_CHECKING:
    from llmkit.engine.context import Context


@dataclass
class Estimate:
    """Sums over the scored tokens so far."""

    n: int = 0
    nll_sum: float = 0.0
    nll2_sum: float = 0.0

    def add(self, nll: NDArray[np.float64]) -> None:
        """Counts the negative log-likelihoods of a window."""
        self.n += nll.size
        self.nll_sum += float(nll.sum())
        self.nll2_sum += float((nll * nll).sum())

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood."""
        return self.nll_sum / self.n if self.n else 0.0

    @property
    def nll_error(self) -> float:
        """Standard error of the mean, tokens taken as independent; 0 where there are too few."""
        variance = self.nll2_sum / self.n - self.nll**2 if self.n > 1 else 0.0
        return math.sqrt(variance / (self.n - 1)) if variance > 0 else 0.0

    @property
    def ppl(self) -> float:
        """Perplexity."""
        return math.exp(self.nll)

    @property
    def ppl_error(self) -> float:
        """Its uncertainty."""
        return self.ppl * self.nll_error


def perplexity(
    ctx: "Context", windows: Windows, n_seq: int, *, save: LogitsWriter | None = None, stop: Stop = never
) -> Iterator[Estimate]:
    """The estimate after each window, always the same object. `save` gets the log-probabilities of all scored rows."""
    estimate = Estimate()
    for _, nll in by_window(_rows(ctx, windows, n_seq, save, stop), windows.n_scored):
        estimate.add(nll)
        yield estimate


def _rows(
    ctx: "Context", windows: Windows, n_seq: int, save: LogitsWriter | None, stop: Stop
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    scores = RowScores(ctx)
    for row, logits in window_logits(ctx, windows, n_seq, stop):
        statistics = scores.statistics(logits)
        if save is not None:
            save.write_rows(scores.pack(logits, statistics))
        yield row, scores.nll(logits, statistics, windows.targets(row, len(logits)))
