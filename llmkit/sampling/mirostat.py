"""Mirostat 1 and 2: the cut is moved from token to token so that the surprise of the text stays near a target.

Basu et al. 2020, "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", arXiv:2007.14966.
"""

import math

import numpy as np
from numpy.typing import NDArray

from llmkit.sampling.candidates import Candidates
from llmkit.sampling.draw import index_at
from llmkit.sampling.top_k import top_k

N_ESTIMATE = 100
"""Mirostat 1 estimates the exponent of Zipf's law from so many of the best tokens."""


class Mirostat2:
    """Keeps tokens whose surprise, -log2(probability), is at most `mu`; draws; and moves mu."""

    def __init__(self, tau: float, eta: float) -> None:
        self.tau, self.eta = tau, eta
        self.mu = 2 * tau

    def choose(self, candidates: Candidates, u: float) -> int:
        """The id on which u in [0, 1) falls, the kept probabilities laid end to end in the order of the ids."""
        kept = self.kept(candidates)
        place = index_at(kept.weights[0], u)
        self.mu -= self.eta * (-math.log2(kept.probs[place]) - self.tau)
        return int(kept.ids[place])

    def kept(self, candidates: Candidates) -> Candidates:
        """Those that are not too surprising, the best one at least."""
        # log p = logit - largest - log(total) >= -mu log 2
        bound = candidates.largest + math.log(candidates.weights[1]) - self.mu * math.log(2)
        kept = candidates.reaching(bound)
        return candidates.take(kept) if kept.size else candidates.the_best()


class Mirostat1(Mirostat2):
    """Keeps the k best, k from Zipf's law with the exponent that the best tokens suggest."""

    def kept(self, candidates: Candidates) -> Candidates:
        """The k best."""
        if candidates.n == 1:
            return candidates
        best = np.sort(candidates.logits[candidates.best(N_ESTIMATE)].astype(np.float64))[::-1]
        k = zipf_cut(zipf_exponent(best), self.mu, candidates.n)
        return top_k(candidates, k)


def zipf_exponent(best: NDArray[np.float64]) -> float:
    """The exponent s of p(i) ~ i^-s that fits these logits, best first, with the least squares of neighbours."""
    rank = np.arange(1, best.size)
    t, b = np.log((rank + 1) / rank), best[:-1] - best[1:]
    return float((t * b).sum() / (t * t).sum())


def zipf_cut(s: float, mu: float, n_vocab: int) -> int:
    """How many of n_vocab tokens have together the surprise mu under Zipf's law with exponent s; 1 to n_vocab.

    k = (e 2^mu / (1 - n_vocab^-e))^(1/s) with e = s - 1, in logarithms; e / (1 - n^-e) is 1 / log(n) where e is 0.
    """
    e = s - 1
    log_n = math.log(n_vocab)
    share = -e / math.expm1(-e * log_n) if abs(e * log_n) > 1e-12 else 1 / log_n
    log_k = math.log(share) + mu * math.log(2)
    if log_k <= 0:
        return 1
    return n_vocab if log_k >= s * log_n else max(1, int(math.exp(log_k / s)))
