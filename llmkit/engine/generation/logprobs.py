"""Log-probabilities, mostly of the raw distribution: before any step of sampling, so that no temperature shows in them.

Owns the log-softmax and the list of the best. Knows nothing of how a token was chosen or what its text is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmkit.errors import NumericsError
from llmkit.params import check_range
from llmkit.sampling.candidates import BAD_LOGITS_HINT, Candidates, top_k_indices


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability."""

    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The chosen token's log-probability, and the best tokens', best first, equal ones by id."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


def token_logprobs(logits: NDArray[np.float32], chosen: int, n_top: int) -> Logprobs:
    """From logits [n_vocab] float32: `chosen` and the `n_top` best (all of them if there are fewer).

    log p = logit - max - log(sum(exp(logit - max))): finite for any finite logits; the sum is f64.
    """
    check_range("logprobs", n_top, 0, None, "0 gives the chosen token's alone")
    largest = logits.max()
    if not np.isfinite(largest):
        raise NumericsError(
            "the model's logits hold NaN or infinity, so they have no log-probabilities", BAD_LOGITS_HINT
        )
    shift = float(largest) + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    best = _best(logits, n_top)
    return Logprobs(
        TokenLogprob(chosen, float(logits[chosen]) - shift),
        tuple(TokenLogprob(int(i), float(logits[i]) - shift) for i in best),
    )


def sampled_logprobs(candidates: Candidates, chosen: int, n_top: int) -> Logprobs:
    """The same of what the steps of sampling left to choose from: the others have no probability and are not listed."""
    check_range("logprobs", n_top, 0, None, "0 gives the chosen token's alone")
    probs = candidates.probs
    order = np.argsort(-probs, kind="stable")[:n_top]
    at = int(np.searchsorted(candidates.ids, chosen))
    return Logprobs(
        TokenLogprob(chosen, float(np.log(probs[at]))),
        tuple(TokenLogprob(int(candidates.ids[i]), float(np.log(probs[i]))) for i in order if probs[i] > 0),
    )


def _best(logits: NDArray[np.float32], n_top: int) -> NDArray[np.int64]:
    """The indices of the n_top largest, best first."""
    if n_top == 0:
        return np.arange(0, dtype=np.int64)
    indices = top_k_indices(logits, min(n_top, logits.size))
    return indices[np.argsort(-logits[indices], kind="stable")]
