"""Locally typical sampling: tokens whose surprise is near what is expected stay.

Meister et al. 2022, "Locally Typical Sampling", arXiv:2202.00666.
"""

import numpy as np

from llmkit.sampling.candidates import Candidates, Ids, shortest_head


def typical(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keeps those whose surprise is closest to the entropy, as few as exceed the share p; p >= 1 keeps all."""
    if p >= 1 or candidates.n == 1:
        return candidates
    surprise = candidates.surprise
    oddness = abs(surprise - (candidates.probs * surprise).sum())

    def least_odd_first(m: int) -> Ids:
        least = np.flatnonzero(oddness <= np.partition(oddness, m - 1)[m - 1])
        return least[np.argsort(oddness[least], kind="stable")]

    return shortest_head(least_odd_first, candidates, p, above=True, min_keep=min_keep)
