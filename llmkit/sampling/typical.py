"""Locally typical sampling: tokens whose surprise is near what is expected stay.

Meister et al. 2022, "Locally Typical Sampling", arXiv:2202.00666.
"""

import numpy as np
from numpy.typing import NDArray

from llmkit.sampling.candidates import Candidates, Ids


def typical(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keeps those whose surprise is closest to the entropy, as few as exceed the share p; p >= 1 keeps all.

    Equally typical ones count in the order of their ids. Only as many are sorted as are needed.
    """
    if p >= 1 or candidates.n == 1:
        return candidates
    weights, total = candidates.weights
    surprise = candidates.surprise
    oddness = abs(surprise - (candidates.probs * surprise).sum())
    n_sorted = max(256, min_keep)
    while True:
        order = _smallest(oddness, min(n_sorted, candidates.n))
        reached = np.cumsum(weights[order].astype(np.float64))
        n_kept = int(np.searchsorted(reached, p * total, side="right")) + 1
        if n_kept <= order.size or n_sorted >= candidates.n:
            return candidates.take(np.sort(order[: max(n_kept, min_keep)]))
        n_sorted *= 16


def _smallest(values: NDArray[np.float64], m: int) -> Ids:
    """The indices of the m smallest, and of those that equal the m-th, in order; equal ones ascend."""
    found = np.flatnonzero(values <= np.partition(values, m - 1)[m - 1])
    return found[np.argsort(values[found], kind="stable")]
