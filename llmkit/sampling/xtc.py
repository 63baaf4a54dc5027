"""XTC, "exclude top choices": now and then all but the least of the probable tokens go, so that another one is taken.

By p-e-w, oobabooga/text-generation-webui#6335.
"""

import numpy as np

from llmkit.sampling.candidates import Candidates

MAX_THRESHOLD = 0.5
"""Two tokens cannot both be more probable than this, so a higher threshold excludes nothing."""


def xtc(candidates: Candidates, probability: float, threshold: float, min_keep: int, chance: float) -> Candidates:
    """If chance <= probability: of the tokens with at least `threshold`, only the last (by probability, then id) stays.

    Nothing goes if fewer than min_keep would be left. chance: a random number in [0, 1).
    """
    if probability <= 0 or threshold > MAX_THRESHOLD or candidates.n < 2 or chance > probability:
        return candidates
    probs = candidates.probs
    probable = np.flatnonzero(probs >= threshold)
    if probable.size < 2 or candidates.n - (probable.size - 1) < min_keep:
        return candidates
    logits = candidates.logits[probable]
    stays = probable[np.flatnonzero(logits == logits.min())[-1]]
    return candidates.take(np.flatnonzero((probs < threshold) | (np.arange(candidates.n) == stays)))
