"""The tokens that may still be chosen, and what every step needs of them: the best ones, their weights.

Invariants: candidates are never empty; their ids ascend; equal logits are decided for the lowest id. The largest logit
is finite, so none is NaN or +inf; -inf means "never", and `possible` leaves such tokens out. Weights are float32 as in
llama.cpp, their sums float64; they come from kernels with the same bits on every machine.
"""

import math
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from llmkit.kernels import sample

Ids = NDArray[np.int64]
Logits = NDArray[np.float32]

BAD_LOGITS_HINT = "The file may be damaged, or a value overflowed: try -ctk f32 -ctv f32."

LOWEST = float(np.finfo(np.float32).min)
"""The lowest logit that is not -inf."""


class Candidates:
    """Tokens that may still be chosen: ids [n] int64 ascending, logits [n] float32, contiguous; neither is written."""

    def __init__(self, ids: Ids, logits: Logits) -> None:
        self.ids, self.logits = ids, logits

    @classmethod
    def all_of(cls, logits: Logits) -> "Candidates":
        """The whole vocabulary."""
        return cls(_all_ids(logits.size), logits)

    @property
    def n(self) -> int:
        """How many there are."""
        return self.logits.size

    @cached_property
    def _scan(self) -> tuple[float, Logits]:
        return scan(self.logits)

    @property
    def largest(self) -> float:
        """The best one's logit; NaN if any is."""
        return self._scan[0]

    @cached_property
    def weights(self) -> tuple[Logits, float]:
        """exp(logit - largest), float32 [n]: probabilities up to a common factor, the best one's 1; and their sum."""
        out = np.empty(self.n, dtype=np.float32)
        total = sample.weights(self.logits.ctypes.data, self.n, self.largest, out.ctypes.data)
        return out, float(total)

    @property
    def probs(self) -> NDArray[np.float64]:
        """The probabilities, float64 [n]."""
        weights, total = self.weights
        return weights.astype(np.float64) / total

    def take(self, indices: Ids) -> "Candidates":
        """The candidates at these ascending indices."""
        return Candidates(self.ids[indices], self.logits[indices])

    def with_logits(self, logits: Logits) -> "Candidates":
        """The same tokens with other logits."""
        return Candidates(self.ids, logits)

    @property
    def surprise(self) -> NDArray[np.float64]:
        """-log(probability), float64 [n]: finite even where a probability is too small for a float."""
        return math.log(self.weights[1]) + self.largest - self.logits.astype(np.float64)

    def best(self, k: int) -> Ids:
        """The ascending indices of the k best; -inf is never among them."""
        return top_k_indices(self.logits, min(k, self.n), LOWEST, self._scan[1])

    def reaching(self, bound: float) -> Ids:
        """The ascending indices of the logits that are at least `bound`, rounded to float32."""
        return collect(self.logits, self._scan[1], bound)

    def the_best(self) -> "Candidates":
        """The best one alone."""
        return self.take(np.array([self.logits.argmax()]))

    def possible(self) -> "Candidates":
        """Those whose logit is not -inf."""
        if self.logits.min() >= LOWEST:
            return self
        return self.take(self.reaching(LOWEST))

    def places(self, tokens: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """Where these ascending tokens are: their indices, and which of them are here at all."""
        found = np.minimum(np.searchsorted(self.ids, tokens), self.n - 1)
        here = self.ids[found] == tokens
        return found[here], here


@lru_cache(maxsize=4)
def _all_ids(n_vocab: int) -> Ids:
    ids = np.arange(n_vocab, dtype=np.int64)
    ids.flags.writeable = False
    return ids


def scan(logits: Logits) -> tuple[float, Logits]:
    """The largest logit, NaN if any is; and the largest of each run of BLOCK of them."""
    maxima = np.empty(-(-logits.size // sample.BLOCK), dtype=np.float32)
    return float(sample.scan(logits.ctypes.data, logits.size, maxima.ctypes.data)), maxima


def collect(logits: Logits, maxima: Logits, bound: float) -> Ids:
    """The ascending indices of the logits that reach the bound; maxima as from `scan`."""
    n_blocks = int(np.count_nonzero(maxima >= bound))
    ids = np.empty(min(n_blocks * sample.BLOCK, logits.size), dtype=np.int64)
    n = sample.collect(logits.ctypes.data, logits.size, maxima.ctypes.data, bound, ids.ctypes.data)
    return ids[:n]


def top_k_indices(logits: Logits, k: int, lowest: float = -np.inf, maxima: Logits | None = None) -> Ids:
    """The ascending indices of the k largest logits; of equal ones at the border the first stay. 0 < k <= n.

    Those below `lowest` are left out. The k-th largest of the blocks' maxima bounds the k-th largest logit from below,
    so only the few blocks that reach it are looked at, and only the few logits there are sorted.
    """
    maxima = scan(logits)[1] if maxima is None else maxima
    bound = float(np.partition(maxima, maxima.size - k)[maxima.size - k]) if k <= maxima.size else -np.inf
    above = collect(logits, maxima, max(bound, lowest))
    if above.size <= k:
        return above
    values = logits[above]
    kth = np.partition(values, values.size - k)[values.size - k]
    sure, ties = above[values > kth], above[values == kth]
    return np.sort(np.concatenate((sure, ties[: k - sure.size])))
