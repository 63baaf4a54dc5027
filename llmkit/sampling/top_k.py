"""Top-k: the k best tokens stay. Fan et al. 2018, "Hierarchical Neural Story Generation", arXiv:1805.04833."""

from llmkit.sampling.candidates import Candidates


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keeps the k best that are possible; k <= 0 keeps all."""
    if k <= 0:
        return candidates
    if k >= candidates.n:
        return candidates.possible()
    return candidates.take(candidates.best(k))
