"""How far a model's distribution is from a base model's, token by token: llama.cpp's statistics of KL divergence.

Owns the formulas; a value comes with its standard error. Knows nothing of how they are printed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmkit.errors import UsageError
from llmkit.evaluate.errors import OtherLengthError, OtherModelError, OtherTextError
from llmkit.evaluate.logits_file import LogitsReader
from llmkit.evaluate.rows import Stop, by_window, never, window_logits
from llmkit.evaluate.scores import RowScores
from llmkit.evaluate.windows import ALL, Windows

if TYPE_CHECKING:
    from llmkit.engine.context import Context

Doubles = NDArray[np.float64]

# Columns of what is known of a scored token.
NLL, NLL_BASE, KLD, SAME_TOP = range(4)

MIN_FOR_ERROR = 10  # tokens that a standard error needs
MIN_FOR_STATISTICS = 100  # tokens that the closing statistics need


@dataclass(frozen=True)
class Value:
    """A mean and its standard error."""

    mean: float
    error: float


def _mean(total: float, total2: float, n: int) -> Value:
    """From a sum and a sum of squares over n values."""
    if n < 1:
        return Value(0.0, 0.0)
    mean = total / n
    variance = total2 / n - mean * mean
    return Value(mean, math.sqrt(variance / (n - 1)) if variance > 0 and n > MIN_FOR_ERROR else 0.0)


class KlStatistics:
    """Grows by whole windows. Q is this model, `base` the one compared with; p a probability of the text's token."""

    def __init__(self) -> None:
        self.n = 0
        self._sums = np.zeros(12)
        self._kld: list[NDArray[np.float32]] = []
        self._p_diff: list[NDArray[np.float32]] = []

    def add(self, tokens: Doubles) -> None:
        """Counts a window's scored tokens, float64 [n, 4]: NLL, NLL_BASE, KLD, SAME_TOP (1 or 0)."""
        nll, base, kld = tokens[:, NLL], tokens[:, NLL_BASE], tokens[:, KLD]
        p_diff = np.exp(-nll) - np.exp(-base)
        columns = (
            nll, nll**2, base, base**2, nll * base, kld, kld**2, p_diff, p_diff**2, p_diff**4, tokens[:, SAME_TOP],
            np.zeros(0),
        )  # fmt: skip
        self._sums += [float(column.sum()) for column in columns]
        self._kld.append(kld.astype(np.float32))
        self._p_diff.append(p_diff.astype(np.float32))
        self.n += len(tokens)

    @property
    def ln_ppl(self) -> Value:
        """ln PPL(Q)."""
        return _mean(self._sums[0], self._sums[1], self.n)

    @property
    def ln_ppl_base(self) -> Value:
        """ln PPL(base)."""
        return _mean(self._sums[2], self._sums[3], self.n)

    @property
    def ppl(self) -> Value:
        """PPL(Q)."""
        return _exp(self.ln_ppl)

    @property
    def ppl_base(self) -> Value:
        """PPL(base)."""
        return _exp(self.ln_ppl_base)

    @property
    def _covariance(self) -> float:
        """Of the means of the two negative log-likelihoods."""
        if self.n < MIN_FOR_ERROR:
            return 0.0
        nll, base, product = self._sums[0] / self.n, self._sums[2] / self.n, self._sums[4] / self.n
        return float((product - nll * base) / (self.n - 1))

    @property
    def correlation(self) -> float:
        """Of ln PPL(Q) and ln PPL(base), -1 to 1; 0 where nothing varies."""
        scale = self.ln_ppl.error * self.ln_ppl_base.error
        return self._covariance / scale if scale > 0 else 0.0

    @property
    def ln_ratio(self) -> Value:
        """ln(PPL(Q) / PPL(base))."""
        q, base = self.ln_ppl, self.ln_ppl_base
        return Value(q.mean - base.mean, _error_of_difference(q.error, base.error, self._covariance))

    @property
    def ratio(self) -> Value:
        """PPL(Q) / PPL(base)."""
        return _exp(self.ln_ratio)

    @property
    def difference(self) -> Value:
        """PPL(Q) - PPL(base)."""
        q, base = self.ppl, self.ppl_base
        covariance = q.mean * base.mean * self._covariance
        return Value(q.mean - base.mean, _error_of_difference(q.error, base.error, covariance))

    @property
    def kld(self) -> Value:
        """KL divergence."""
        return _mean(self._sums[5], self._sums[6], self.n)

    @property
    def p_diff(self) -> Value:
        """p(Q) - p(base)."""
        return _mean(self._sums[7], self._sums[8], self.n)

    @property
    def p_diff_rms(self) -> Value:
        """Root of the mean square of p(Q) - p(base)."""
        square = _mean(self._sums[8], self._sums[9], self.n)
        rms = math.sqrt(square.mean)
        return Value(rms, 0.5 / rms * square.error if rms > 0 else 0.0)

    @property
    def same_top(self) -> Value:
        """Share of tokens where both find the same one likeliest."""
        share = float(self._sums[10]) / self.n if self.n else 0.0
        return Value(share, math.sqrt(share * (1 - share) / (self.n - 1)) if self.n > 1 else 0.0)

    def kld_percentiles(self, fractions: list[float]) -> list[float]:
        """KL divergence that this share of the tokens stays below; 0 is the smallest, 1 the largest."""
        return _percentiles(self._kld, fractions)

    def p_diff_percentiles(self, fractions: list[float]) -> list[float]:
        """The same of p(Q) - p(base)."""
        return _percentiles(self._p_diff, fractions)


def _exp(value: Value) -> Value:
    mean = math.exp(value.mean)
    return Value(mean, mean * value.error)


def _error_of_difference(a: float, b: float, covariance: float) -> float:
    return math.sqrt(max(0.0, a * a + b * b - 2 * covariance))


def _percentiles(parts: list[NDArray[np.float32]], fractions: list[float]) -> list[float]:
    """By linear interpolation between the neighbours in order."""
    values = np.concatenate(parts)
    return [float(v) for v in np.quantile(values, fractions)]


def base_windows(
    base: LogitsReader,
    n_vocab: int,
    bos: int | None,
    *,
    n_ctx: int | None = None,
    n_chunks: int = ALL,
    text: NDArray[np.int32] | None = None,
) -> Windows:
    """The windows that the base's rows are of: its own tokens.

    OtherModelError unless its vocabulary has n_vocab tokens, OtherLengthError if its context is not n_ctx (None takes
    any), OtherTextError if the tokens of `text` are given and are not its.
    """
    if base.n_vocab != n_vocab:
        message = f"{base.path} comes from a model of {base.n_vocab} tokens; this one has {n_vocab}"
        raise OtherModelError(message, "take a file that a model with the same vocabulary wrote")
    if n_ctx is not None and n_ctx != base.n_ctx:
        message = f"{base.path} was computed with a context of {base.n_ctx}, not {n_ctx}"
        raise OtherLengthError(message, f"leave out -c, or give -c {base.n_ctx}")
    if text is not None and not np.array_equal(base.tokens, text[: base.tokens.size]):
        message = f"{base.path} is of another text than the one given, or its tokenizer cut it otherwise"
        raise OtherTextError(message, "leave out -f: the file holds the tokens")
    if n_chunks != ALL and n_chunks < 1:
        raise UsageError(f"--chunks is {n_chunks}; at least 1 is expected", "-1 takes all that the file has")
    n = base.n_chunks if n_chunks == ALL else min(n_chunks, base.n_chunks)
    return Windows(base.tokens, base.n_ctx, base.n_ctx, base.n_ctx // 2, n, bos)


def kl_divergence(
    ctx: "Context", base: LogitsReader, windows: Windows, n_seq: int, stop: Stop = never
) -> Iterator[KlStatistics]:
    """The statistics after each window, always the same object."""
    statistics = KlStatistics()
    for _, tokens in by_window(_rows(ctx, base, windows, n_seq, stop), windows.n_scored):
        statistics.add(tokens)
        yield statistics


def _rows(
    ctx: "Context", base: LogitsReader, windows: Windows, n_seq: int, stop: Stop
) -> Iterator[tuple[int, Doubles]]:
    scores = RowScores(ctx)
    for row, logits in window_logits(ctx, windows, n_seq, stop):
        targets = windows.targets(row, len(logits))
        packed = scores.packed_rows(len(logits))
        base.read_rows(packed)
        own = scores.statistics(logits)
        divergence, base_top, base_log_p = scores.packed_divergence(logits, own, packed, targets).T
        yield row, np.stack([scores.nll(logits, own, targets), -base_log_p, divergence, base_top == own[:, 1]], axis=1)
