"""Top-p (nucleus): the best tokens stay, as few as are sufficiently probable together.

Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration", arXiv:1904.09751.
"""

from llmkit.sampling.candidates import Candidates, Ids, best_first, shortest_head


def top_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Keeps the best, as few as reach the share p of the candidates' probability; p >= 1 keeps all."""
    if p >= 1 or candidates.n == 1:
        return candidates

    def best(m: int) -> Ids:
        return best_first(candidates.logits, candidates.best(m))

    return shortest_head(best, candidates, p, above=False, min_keep=min_keep)
