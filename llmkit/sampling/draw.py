"""The end of the chain: one token of those that are left. The best, or one drawn by its probability."""

import numpy as np
from numpy.typing import NDArray

from llmkit.sampling.candidates import Candidates


def uniform(seed: int, n: int, stream: int = 0) -> float:
    """The n-th number in [0, 1) of a seed and stream:

    Philox4x64-10 with key `seed`, `stream` at counter `n`, its first 53 bits. No state, so any n costs the same.
    """
    key = seed + (stream << 64)
    return (int(np.random.Philox(key=key, counter=n).random_raw()) >> 11) * 2.0**-53


def index_at(weights: NDArray[np.float32], u: float) -> int:
    """The index on which u in [0, 1) falls when the weights are laid end to end; one without weight never.

    First among runs of weights, then within one: a vocabulary is only summed up once, and not accumulated.
    """
    starts = np.arange(0, weights.size, _RUN)
    runs = np.add.reduceat(weights, starts, dtype=np.float64)
    ends = np.cumsum(runs)
    run = _place(ends, u * ends[-1])
    within = weights[starts[run] : starts[run] + _RUN].astype(np.float64)
    return int(starts[run]) + _place(np.cumsum(within), u * ends[-1] - (ends[run] - runs[run]))


def _place(ends: NDArray[np.float64], at: float) -> int:
    """The first that ends beyond `at`; where rounding lifted that to the very end, the last with any weight."""
    last = int(np.searchsorted(ends, ends[-1]))
    return min(int(np.searchsorted(ends, at, side="right")), last)


_RUN = 1024


class Best:
    """The best token, of equal ones the lowest id."""

    def choose(self, candidates: Candidates, u: float) -> int:
        """Its id."""
        return int(candidates.ids[candidates.logits.argmax()])


class Draw:
    """A token by its probability."""

    def choose(self, candidates: Candidates, u: float) -> int:
        """The id on which u in [0, 1) falls, the probabilities laid end to end in the order of the ids."""
        return int(candidates.ids[index_at(candidates.weights[0], u)])
