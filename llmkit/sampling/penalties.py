"""Penalties for tokens that were used lately.

Repetition: Keskar et al. 2019, "CTRL", arXiv:1909.05858, made to lower negative logits too. Frequency and presence:
OpenAI's API.
"""

import numpy as np

from llmkit.sampling.candidates import LOWEST, Candidates, Ids


def penalties(candidates: Candidates, tokens: Ids, repeat: float, frequency: float, presence: float) -> Candidates:
    """For each token among `tokens`, the last ones: its logit / repeat, or * repeat if it is negative;

    then minus frequency * (how often it is there) + presence. A token that can be chosen stays one that can be.
    """
    used, counts = np.unique(tokens, return_counts=True)
    places, here = candidates.places(used)
    if not places.size:
        return candidates
    logits = candidates.logits.copy()
    old = logits[places].astype(np.float64)
    new = np.where(old <= 0, old * repeat, old / repeat) - (counts[here] * frequency + presence)
    logits[places] = np.where(old == -np.inf, old, np.clip(new, LOWEST, -LOWEST))
    return candidates.with_logits(logits)
