"""Min-p: what is far less probable than the best token goes.

Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", arXiv:2407.01082.
"""

import math

from llmkit.sampling.candidates import Candidates


def min_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keeps those at least p times as probable as the best one; p <= 0 keeps all."""
    if p <= 0:
        return candidates
    kept = candidates.reaching(candidates.largest + math.log(p))
    return candidates.take(kept if kept.size >= min_keep else candidates.best(min_keep))
