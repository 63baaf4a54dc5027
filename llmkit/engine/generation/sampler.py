"""Choosing the tokens of one sequence from rows of logits.

Owns the state of one sequence: its random numbers, its last tokens, and what adaptive steps remember. Knows nothing of
contexts, texts or other sequences, so a choice depends on nothing but the parameters, the seed, the tokens so far, and
the logits.
"""

import secrets
from collections import deque
from collections.abc import Iterable
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from llmkit.errors import NumericsError
from llmkit.kernels import sample as kernels
from llmkit.params import MAX_SEED, SamplingParams
from llmkit.sampling.candidates import BAD_LOGITS_HINT, Candidates
from llmkit.sampling.chain import build_chain, describe_chain
from llmkit.sampling.draw import uniform
from llmkit.sampling.dry import Vocabulary

__all__ = ["Sampler", "describe_chain"]

_DRAWS, _CHANCES = 0, 1  # streams of random numbers


class TextGrammar(Protocol):
    """What is needed of a grammar: sampling/grammar.py's Grammar, in the state of this sequence's text."""

    @property
    def finished(self) -> bool: ...

    def start_mask(self) -> None: ...

    def mask(self) -> NDArray[np.uint32]: ...

    def accept(self, token: int) -> None: ...

    def clone(self) -> Self: ...


class SampledVocabulary(Vocabulary, Protocol):
    """What is needed of a tokenizer."""

    @property
    def suppressed_ids(self) -> frozenset[int]: ...


class Sampler:
    """Chooses the tokens of one sequence.

    `eog_ids` are the tokens that end a generation, needed for `ignore_eos` only; `vocab` names the tokens that are
    never chosen (`tokenizer.ggml.suppress_tokens`), and tells the text of tokens, needed for DRY's sequence breakers.
    `grammar` says which tokens may come; its next mask is computed from the choice of a token on, while the model
    computes. `seed` is the one in use, chosen here if the parameters leave it open; `(seed, n_drawn)` is all the random
    state there is. `finished`: by the grammar nothing can follow.
    """

    def __init__(
        self,
        params: SamplingParams,
        eog_ids: Iterable[int] = (),
        vocab: SampledVocabulary | None = None,
        grammar: TextGrammar | None = None,
    ) -> None:
        self.params, self.grammar = params, grammar
        self.finished = False
        if grammar is not None:
            grammar.start_mask()
        self.seed: int = secrets.randbelow(MAX_SEED) if params.random_seed else params.seed
        self.n_drawn: int = 0
        self._bias = _biases(params, eog_ids, vocab.suppressed_ids if vocab is not None else ())
        self._steps, self._selector = build_chain(params, vocab)
        self._past = deque[int](maxlen=max(params.repeat_last_n, params.dry_penalty_last_n))

    def accept(self, tokens: Iterable[int]) -> None:
        """Takes note of tokens of the sequence that were not chosen here: its prompt. `sample` notes its own."""
        self._past.extend(tokens)

    def sample(self, logits: NDArray[np.float32], allowed: NDArray[np.uint32] | None = None) -> int:
        """The next token's id from logits [n_vocab] float32, which are only read.

        allowed: a bit for each token, bit i mod 32 of word i div 32, [(n_vocab + 31) div 32]; others are never chosen.
        NumericsError if the logits hold NaN or +inf, or if no token is left.
        """
        candidates = self.candidates(logits, allowed)
        u = 0.0 if self.params.greedy else uniform(self.seed, self.n_drawn, _DRAWS)  # greedy: nobody draws
        token = self._selector.choose(candidates, u)
        self.n_drawn += 1
        self._past.append(token)
        self._follow(token)
        return token

    def _follow(self, token: int) -> None:
        """Tells the grammar which token came."""
        if self.grammar is not None:
            self.grammar.accept(token)
            self.finished = self.grammar.finished
            if not self.finished:
                self.grammar.start_mask()

    def candidates(self, logits: NDArray[np.float32], allowed: NDArray[np.uint32] | None = None) -> Candidates:
        """The tokens that the steps leave for the next choice, with their logits then. Changes nothing."""
        if allowed is None and self.grammar is not None:
            allowed = self.grammar.mask()
        candidates = Candidates.all_of(self._own(logits, allowed))
        _check(candidates.largest)
        for step in self._steps:
            candidates = step.apply(candidates, self)
        return candidates

    def last(self, n: int) -> NDArray[np.int64]:
        """The last n tokens of the sequence, or as many as there are."""
        past = np.fromiter(self._past, dtype=np.int64, count=len(self._past))
        return past[max(0, past.size - n) :]

    def chance(self) -> float:
        """A random number in [0, 1) for the next token, beside the one that draws it."""
        return uniform(self.seed, self.n_drawn, _CHANCES)

    def _own(self, logits: NDArray[np.float32], allowed: NDArray[np.uint32] | None) -> NDArray[np.float32]:
        """The logits with biases, and -inf for what is not allowed: a copy unless there is neither."""
        tokens, biases = self._bias
        if allowed is not None:
            if (n_words := -(-logits.size // 32)) > allowed.size:  # rows of logits that are no tokens
                allowed = np.pad(allowed, (0, n_words - allowed.size))
            masked = np.empty_like(logits)
            kernels.keep_allowed(logits.ctypes.data, logits.size, allowed.ctypes.data, masked.ctypes.data)
            logits = masked
        elif tokens.size:
            logits = logits.copy()
        if tokens.size:
            logits[tokens] += biases
        return logits


def _biases(
    params: SamplingParams, eog_ids: Iterable[int], suppressed_ids: Iterable[int]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Tokens, ascending, and what is added to their logits."""
    total = dict[int, float]()
    never = [*(eog_ids if params.ignore_eos else ()), *suppressed_ids]
    for token, bias in [*params.logit_bias, *((token, -np.inf) for token in never)]:
        total[token] = total.get(token, 0.0) + bias
    return np.array(sorted(total), dtype=np.int64), np.array([total[t] for t in sorted(total)], dtype=np.float32)


def _check(largest: float) -> None:
    """The largest logit says it all: NaN spreads into it, +inf is it, and -inf means that no token is left."""
    if np.isfinite(largest):
        return
    if largest == -np.inf:
        raise NumericsError(
            "every token is ruled out, so none can be chosen",
            "Leave out --ignore-eos or a --logit-bias of -inf, or let the grammar allow more.",
        )
    bad = "NaN" if np.isnan(largest) else "infinity"
    raise NumericsError(f"the model's logits hold {bad}, so no token can be chosen", BAD_LOGITS_HINT)
