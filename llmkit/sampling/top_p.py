"""Top-p (nucleus): the best tokens stay, as few as are sufficiently probable together.

Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration", arXiv:1904.09751.
"""

import numpy as np

from llmkit.sampling.candidates import Candidates


def top_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keeps the best, as few as reach the share p of the candidates' probability; p >= 1 keeps all."""
    if p >= 1 or candidates.n == 1:
        return candidates
    weights, total = candidates.weights
    # Those below this bound together weigh less than the share that is left out: they need no sorting.
    large = weights[weights >= (1 - p) * total / candidates.n]
    reached = np.cumsum(np.sort(large)[::-1].astype(np.float64))
    n_kept = min(int(np.searchsorted(reached, p * total)) + 1, large.size)
    return candidates.take(candidates.best(max(n_kept, min_keep)))
