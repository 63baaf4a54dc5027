"""Adaptive-p: tokens near a probability that is aimed at are preferred, so that the average over the text meets it.

By MrJackSpade and ddh0, ggml-org/llama.cpp#17927.
"""

import numpy as np

from llmkit.sampling.candidates import Candidates
from llmkit.sampling.draw import index_at

# The logit that a token with the probability aimed at gets, how wide the peak is, and how steeply it falls off.
PEAK, WIDTH, SHARPNESS = 5.0, 0.3, 10.0


class AdaptiveP:
    """Draws, and remembers how probable what it drew was: a mean in which the past counts less by `decay` each time."""

    def __init__(self, target: float, decay: float) -> None:
        self.target, self.decay = target, decay
        self.weighted_sum, self.total_weight = target / (1 - decay), 1 / (1 - decay)

    @property
    def aim(self) -> float:
        """The probability to aim at now: as far on the other side of the target as the mean is on this one."""
        return min(max(2 * self.target - self.weighted_sum / self.total_weight, 0.0), 1.0)

    def choose(self, candidates: Candidates, u: float) -> int:
        """The id on which u in [0, 1) falls after the candidates' probabilities were bent towards the aim."""
        probs = candidates.probs
        place = index_at(self.bent(candidates).weights[0], u)
        self.weighted_sum = float(probs[place]) + self.decay * self.weighted_sum
        self.total_weight = 1 + self.decay * self.total_weight
        return int(candidates.ids[place])

    def bent(self, candidates: Candidates) -> Candidates:
        """The candidates with logits that fall off with the distance of their probability from the aim."""
        distance = abs(candidates.probs - self.aim) / WIDTH
        bent = PEAK - SHARPNESS * distance**2 / (1 + distance)
        return candidates.with_logits(bent.astype(np.float32))
