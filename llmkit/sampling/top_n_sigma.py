"""Top-n-sigma: what lies more than n standard deviations of all logits below the best one goes.

Tang et al. 2024, "Top-nσ: Not All Logits Are You Need", arXiv:2411.07641.
"""

import numpy as np

from llmkit.sampling.candidates import LOWEST, Candidates


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Keeps logits of at least largest - n * (standard deviation of those above -inf, float64); n <= 0 keeps all."""
    if n <= 0 or candidates.n == 1:
        return candidates
    logits = candidates.logits
    possible = logits if logits.min() >= LOWEST else logits[logits >= LOWEST]
    sigma = float(possible.std(dtype=np.float64))
    return candidates.take(candidates.reaching(max(candidates.largest - n * sigma, LOWEST)))
