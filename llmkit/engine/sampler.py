"""Choosing the next token from a row of logits.

Owns the chain (which steps, in which order) and the random state of one sequence. Knows nothing of contexts, texts or
other sequences, so a draw depends on nothing but the parameters, the seed, how many tokens were drawn before, and the
logits.
"""

import secrets
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from llmkit.engine import sampling_steps as steps
from llmkit.engine.sampling_steps import Candidates, Step
from llmkit.errors import NumericsError
from llmkit.params import MAX_SEED, SamplingParams


def build_chain(params: SamplingParams) -> tuple[Step, ...]:
    """The steps between the logits and the draw, llama.cpp's order:

    Top-k, top-p, min-p, temperature. Steps that are off are left out.
    """
    chain: list[Step] = []
    if params.top_k > 0:
        chain.append(lambda c: steps.top_k(c, params.top_k))
    if params.top_p < 1:
        chain.append(lambda c: steps.top_p(c, params.top_p))
    if params.min_p > 0:
        chain.append(lambda c: steps.min_p(c, params.min_p))
    chain.append(lambda c: steps.temperature(c, params.temp))
    return tuple(chain)


def describe_chain(params: SamplingParams) -> str:
    """The chain in words, for a log line: what is on, in order."""
    if params.greedy:
        return "greedy"
    named = (
        (params.top_k > 0, f"top-k {params.top_k}"),
        (params.top_p < 1, f"top-p {params.top_p:g}"),
        (params.min_p > 0, f"min-p {params.min_p:g}"),
    )
    return " -> ".join([text for on, text in named if on] + [f"temp {params.temp:g}", "dist"])


def uniform(seed: int, n: int) -> float:
    """The n-th number in [0, 1) of a seed:

    Philox4x64-10 with key `seed` at counter `n`, its first 53 bits. No state, so any n costs the same.
    """
    return (int(np.random.Philox(key=seed, counter=n).random_raw()) >> 11) * 2.0**-53


class Sampler:
    """Chooses the tokens of one sequence.

    `eog_ids` are the tokens that end a generation, needed for `ignore_eos` only. `seed` is the one in use, chosen here
    if the parameters leave it open; `(seed, n_drawn)` is all the random state there is.
    """

    def __init__(self, params: SamplingParams, eog_ids: Iterable[int] = ()) -> None:
        self.params = params
        self.seed: int = secrets.randbelow(MAX_SEED) if params.random_seed else params.seed
        self.n_drawn: int = 0
        self._never = np.array(sorted(eog_ids) if params.ignore_eos else [], dtype=np.int64)
        self._chain = build_chain(params)
        self._ids: NDArray[np.int64] = np.arange(0, dtype=np.int64)

    def sample(self, logits: NDArray[np.float32]) -> int:
        """The next token's id from logits [n_vocab] float32, which are only read.

        NumericsError if they hold NaN or +inf, or allow no token.
        """
        logits = self._with_bias(logits)
        _check_logits(logits)
        if self.params.greedy:
            return int(logits.argmax())
        candidates = Candidates(self._all_ids(logits.size), logits)
        for step in self._chain:
            candidates = step(candidates)
        self.n_drawn += 1
        return steps.draw(candidates, uniform(self.seed, self.n_drawn - 1))

    def _with_bias(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits with -inf for every token that must not be chosen."""
        if not self._never.size:
            return logits
        logits = logits.copy()
        logits[self._never] = -np.inf
        return logits

    def _all_ids(self, n_vocab: int) -> NDArray[np.int64]:
        if self._ids.size != n_vocab:
            self._ids = np.arange(n_vocab, dtype=np.int64)
        return self._ids


def _check_logits(logits: NDArray[np.float32]) -> None:
    """The largest logit says it all: NaN spreads into it, +inf is it, and -inf means that no token is left."""
    largest = float(logits.max())
    if np.isfinite(largest):
        return
    if largest == -np.inf:
        raise NumericsError("every token is ruled out, so none can be chosen", "Leave out --ignore-eos.")
    bad = "NaN" if np.isnan(largest) else "infinity"
    raise NumericsError(f"the model's logits hold {bad}, so no token can be chosen", steps.BAD_LOGITS_HINT)
