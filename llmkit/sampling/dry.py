"""DRY, "don't repeat yourself": a token that would continue a repetition of earlier text is penalised, more the longer
that repetition is. Sequence breakers, such as a newline, end what counts as one.

By p-e-w, oobabooga/text-generation-webui#5677. The rules of breakers are those of llama.cpp, which looks for them in
tokens: a token that contains one, or one that ends with its beginning, followed by the tokens of the rest.
"""

import math
from collections.abc import Iterable
from functools import cache
from typing import Protocol

import numpy as np

from llmkit.sampling.candidates import LOWEST, Candidates, Ids

MAX_BREAKER_BYTES, MAX_TAIL = 40, 20
_MAX_PENALTY_LOG = 88.7228391  # of float32's largest


class Vocabulary(Protocol):
    """What is needed of a tokenizer."""

    def piece_bytes(self, id: int, special: bool = False) -> bytes: ...

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]: ...


class Dry:
    """The step, with its breakers. Without a vocabulary there are none."""

    def __init__(
        self, multiplier: float, base: float, allowed_length: int, breakers: Iterable[str], vocab: Vocabulary | None
    ) -> None:
        self._multiplier, self._base, self._allowed = multiplier, base, allowed_length
        self._max_exponent = int(_MAX_PENALTY_LOG / math.log(base)) if base > 1.000001 else 0
        texts = [text.encode()[:MAX_BREAKER_BYTES] for text in breakers if text]
        # Only tokens that were used are asked about: a vocabulary of 262,144 is never gone through.
        self._tails = cache(lambda token: breaker_tails(token, texts, vocab) if vocab else set())

    def __call__(self, candidates: Candidates, tokens: Ids) -> Candidates:
        """Lowers the logits of tokens that would prolong a repeat at the end of `tokens`, the last ones."""
        if tokens.size <= self._allowed:
            return candidates
        limit = self._repeat_limit(tokens.tolist())
        if self._max_exponent:
            limit = min(limit, self._allowed + self._max_exponent)  # a longer repeat is not penalised more
        longest = longest_repeats(tokens, limit, self._allowed) if limit >= self._allowed else {}
        longest = {token: length for token, length in longest.items() if () not in self._tails(token)}
        places, here = candidates.places(np.array(sorted(longest), dtype=np.int64))
        if not places.size:
            return candidates
        logits = candidates.logits.copy()
        penalties = np.array([self._penalty(longest[token]) for token in sorted(longest)])[here]
        lowered = logits[places] - penalties
        logits[places] = np.where(logits[places] == -np.inf, logits[places], np.maximum(lowered, LOWEST))
        return candidates.with_logits(logits)

    def _penalty(self, length: int) -> float:
        return float(self._multiplier * self._base ** (length - self._allowed))

    def _repeat_limit(self, tokens: list[int]) -> int:
        """How long a repeat can be at most: the number of tokens after the last breaker."""
        n = len(tokens)
        for back, token in enumerate(reversed(tokens)):
            tails = self._tails(token)
            found = [len(tail) for tail in tails if tuple(tokens[n - back : n - back + len(tail)]) == tail]
            if found:
                return back - max(found)
        return n


def breaker_tails(token: int, breakers: list[bytes], vocab: Vocabulary) -> set[tuple[int, ...]]:
    """Which tokens after this one make a breaker complete; the empty tuple if the token holds one by itself."""
    piece = vocab.piece_bytes(token, special=True)
    tails = set[tuple[int, ...]]()
    for breaker in breakers:
        if breaker in piece:
            tails.add(())
            continue
        for start in range(len(piece)):
            rest = breaker[len(piece) - start :]
            if breaker.startswith(piece[start:]) and _is_text(rest):
                ids = vocab.encode(rest.decode(), add_special=False, parse_special=False)
                tails.add(tuple(ids[:MAX_TAIL]))
    return tails


def _is_text(raw: bytes) -> bool:
    """Whether a token split no character: only then the rest of a breaker can be spelled with tokens."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def longest_repeats(tokens: Ids, limit: int, shortest: int) -> dict[int, int]:
    """For each token that followed an earlier occurrence of the end of `tokens`: the longest such end's length.

    Ends shorter than `shortest` do not count; longer than `limit` count as limit.
    """
    longest = dict[int, int]()
    ends = np.arange(tokens.size - 1)  # where an occurrence ends; all of them fit an end of no token
    length = 0
    while ends.size:
        if length >= shortest:
            longest.update(dict.fromkeys(tokens[ends + 1].tolist(), length))
        if length == limit:
            break
        ends = ends[ends >= length]
        ends = ends[tokens[ends - length] == tokens[tokens.size - 1 - length]]
        length += 1
    return longest
