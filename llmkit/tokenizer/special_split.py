"""Finding special tokens in a text, as llama.cpp does: the longest token takes its places in the whole text, then the
next longest.

That differs from a regular expression's leftmost match: of `abc` and `cdefg`, the text `abcdefg` gives `ab` and the
second. Owns that order and the blanks that some tokens swallow; knows nothing about what makes a token special. Time is
linear in the text, for one of newlines and a vocabulary with thirty runs of them too: see _Finder.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from llmkit.tokenizer.special_tokens import SpecialTokens
from llmkit.tokenizer.vocab import Attr, Vocab

_BLANKS = " \t\n\v\f\r"
"""What C's isspace() takes, as llama.cpp calls it; no other Unicode blanks."""

_PREFIX = 4
"""Tokens are looked for by this many first characters: the 6,414 of gemma-3 have 88 beginnings."""

_Place = tuple[int, int, int, int]
"""Minus the token's length in bytes, its id (which settles what llama.cpp leaves undefined), where it starts, its
length.
"""


class SpecialSplitter:
    """Splits texts at the special tokens of one vocabulary."""

    def __init__(self, vocab: Vocab, special: SpecialTokens) -> None:
        found = np.array(special.found, dtype=np.int64)
        always = found[vocab.attrs[found] & (Attr.CONTROL | Attr.UNKNOWN) == 0].tolist()
        self._special = special
        self._all = _Finder({vocab.tokens[id]: id for id in special.found})
        self._always = _Finder({vocab.tokens[id]: id for id in always})

    def split(self, text: str, parse_special: bool) -> list[str | int]:
        """The parts of `text` in order: ids of special tokens, and the text between them (never empty).

        Tokens that a user defined are always found, control tokens and the unknown token only with `parse_special`.
        """
        finder = self._all if parse_special else self._always
        places = finder.longest_places(text)
        if not places:
            return [text] if text else []
        taken = bytearray(len(text))
        chosen: dict[int, tuple[int, int]] = {}
        heapq.heapify(places)
        while places:
            _, id, start, n = heapq.heappop(places)
            if taken[start]:
                continue
            blocked = taken.find(1, start, start + n)
            if blocked < 0:
                taken[start : start + n] = b"\1" * n
                chosen[start] = (n, id)
                self._swallow(text, taken, start, start + n, id)
            elif place := finder.longest_at(text, start, blocked - start):
                heapq.heappush(places, place)
        return list(_parts(text, taken, chosen))

    def _swallow(self, text: str, taken: bytearray, start: int, end: int, id: int) -> None:
        if id in self._special.lstrip:
            while start and not taken[start - 1] and text[start - 1] in _BLANKS:
                start -= 1
                taken[start] = 1
        if id in self._special.rstrip:
            while end < len(text) and not taken[end] and text[end] in _BLANKS:
                taken[end] = 1
                end += 1


def _parts(text: str, taken: bytearray, chosen: dict[int, tuple[int, int]]) -> Iterator[str | int]:
    at = 0
    while at < len(text):
        if at in chosen:
            n, id = chosen[at]
            yield id
            at += n
        elif taken[at]:
            at += 1
        else:
            end = taken.find(1, at)
            end = len(text) if end < 0 else end
            yield text[at:end]
            at = end


class _Finder:
    """Knows some tokens, and finds the longest one at a place.

    Only the longest is needed at first: a shorter one that starts there too has its turn later, and is asked for then.
    """

    def __init__(self, ids: dict[str, int]) -> None:
        self._tokens = {token: (-len(token.encode()), id) for token, id in ids.items()}
        heads = {token[:_PREFIX] for token in ids}
        lengths: dict[str, set[int]] = defaultdict(set)
        for token in ids:
            # The shortest beginning that is one: so every place is found through one of them only.
            head = next(token[:n] for n in range(1, _PREFIX + 1) if token[:n] in heads)
            lengths[head].add(len(token))
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}

    def longest_places(self, text: str) -> list[_Place]:
        """The longest token at every start of one, in any order."""
        places = []
        for head, lengths in self._lengths.items():
            start = text.find(head)
            while start >= 0:
                if place := self._at(text, start, lengths, len(text) - start):
                    places.append(place)
                start = text.find(head, start + 1)
        return places

    def longest_at(self, text: str, start: int, n_max: int) -> _Place | None:
        """The longest token at `start` of at most `n_max` characters; some token must start there."""
        heads = (text[start : start + n] for n in range(1, _PREFIX + 1))
        head = next(head for head in heads if head in self._lengths)
        return self._at(text, start, self._lengths[head], n_max)

    def _at(self, text: str, start: int, lengths: list[int], n_max: int) -> _Place | None:
        for n in lengths:
            if n <= n_max and (found := self._tokens.get(text[start : start + n])):
                return (*found, start, n)
        return None
