"""The steps of the sampling chain: small functions from candidates to fewer, or reweighted, candidates.

Owns the arithmetic of each step and its edge rules, which are llama.cpp's. Knows nothing of parameters, seeds or
sequences.

Invariants: candidates are never empty; their ids ascend; equal logits are decided for the lowest id. Weights are f32 as
in llama.cpp, sums of weights f64. The caller has checked that the largest logit is finite (so none is NaN or +inf);
-inf means "never".
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

N_SELECT_ROWS = 64
"""How many rows the vocabulary is folded into to find a first bound for the k-th largest logit."""

BAD_LOGITS_HINT = "The file may be damaged, or a value overflowed: try -ctk f32 -ctv f32."


@dataclass(frozen=True)
class Candidates:
    """Tokens that may still be chosen: ids [n] int64 ascending, logits [n] float32."""

    ids: NDArray[np.int64]
    logits: NDArray[np.float32]

    def take(self, indices: NDArray[np.int64]) -> "Candidates":
        """The candidates at these ascending indices."""
        return Candidates(self.ids[indices], self.logits[indices])


Step = Callable[[Candidates], Candidates]


def top_k_indices(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The ascending indices of the k largest logits; of equal logits at the border the first ones stay. 0 < k <= n.

    One pass folds the vector into rows and takes the maximum of each column: at least k values reach the k-th largest
    of these maxima, so it bounds the k-th largest value from below and only the few values above it are sorted.
    """
    n = logits.size
    if k >= n:
        return np.arange(n, dtype=np.int64)
    above = np.flatnonzero(logits >= _lower_bound(logits, k))
    values = logits[above]
    kth = np.partition(values, values.size - k)[values.size - k]
    sure = above[values > kth]
    ties = above[values == kth][: k - sure.size]
    return np.sort(np.concatenate((sure, ties)))


def _lower_bound(logits: NDArray[np.float32], k: int) -> np.float32:
    """A value that at least k logits reach, close to the k-th largest."""
    n_columns = logits.size // N_SELECT_ROWS
    if n_columns < 2 * k:
        return np.float32(-np.inf)
    maxima = logits[: n_columns * N_SELECT_ROWS].reshape(N_SELECT_ROWS, n_columns).max(axis=0)
    return np.float32(np.partition(maxima, n_columns - k)[n_columns - k])


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keeps the k best; k <= 0 keeps all."""
    if k <= 0 or k >= candidates.ids.size:
        return candidates
    return candidates.take(top_k_indices(candidates.logits, k))


def top_p(candidates: Candidates, p: float) -> Candidates:
    """Keeps the best, as few as reach the share p of the candidates' probability, one at least; p >= 1 keeps all."""
    n = candidates.ids.size
    if p >= 1 or n == 1:
        return candidates
    weights = _weights(candidates.logits)
    total = float(weights.sum(dtype=np.float64))
    # Those below this bound together weigh less than the share that is left out: they need no sorting.
    large = weights[weights >= (1 - p) * total / n]
    reached = np.cumsum(np.sort(large)[::-1], dtype=np.float64)
    n_kept = min(int(np.searchsorted(reached, p * total)) + 1, large.size)
    return candidates.take(top_k_indices(candidates.logits, n_kept))


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Keeps those at least p times as probable as the best one, the best at least; p <= 0 keeps all."""
    if p <= 0:
        return candidates
    distance = candidates.logits.astype(np.float64) - float(candidates.logits.max())
    return candidates.take(np.flatnonzero(distance >= min(np.log(p), 0.0)))


def temperature(candidates: Candidates, temp: float) -> Candidates:
    """Divides the logits, measured from the best one, by temp > 0."""
    distance = candidates.logits - candidates.logits.max()
    with np.errstate(over="ignore"):
        return Candidates(candidates.ids, distance / np.float32(max(temp, float(np.finfo(np.float32).tiny))))


def draw(candidates: Candidates, uniform: float) -> int:
    """The id on which `uniform` in [0, 1) falls when the probabilities are laid end to end in the order of the ids."""
    ends = np.cumsum(_weights(candidates.logits), dtype=np.float64)
    # Rounding may lift uniform * total to total itself: then the last candidate with any weight is meant.
    last = int(np.searchsorted(ends, ends[-1]))
    return int(candidates.ids[min(int(np.searchsorted(ends, uniform * ends[-1], side="right")), last)])


def _weights(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(logit - largest): the probabilities up to a common factor, the largest 1."""
    weights: NDArray[np.float32] = np.exp(logits - logits.max())
    return weights
