"""Words of short texts by the kept merges alone: to build the library takes 0.3 s for 150,000 merges, for gemma's 0.9.

Owns the twin of the library's BPE in Python, and when it is no longer enough: after some thousands of characters, or
at a character that it leaves to the library, the library is built and asked from then on. Both give the same ids.
"""

import heapq
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmkit.tokenizer.vocab import SPM_SPACE, Vocab

N_SHORT = 4096
"""Characters of all texts together that are read without the library: some 30 ms."""


class Words(Protocol):
    """What reads plain text: the library, or this."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""


class Beyond(Exception):
    """A text that is left to the library."""


class Merges:
    """Kept merges, int32 [n, 3]: the ids of left, right and joined, best first. Asked pair by pair."""

    def __init__(self, vocab: Vocab, merges: npt.NDArray[np.int32]) -> None:
        keys = merges[:, 0].astype(np.int64) << 32 | merges[:, 1]
        self._ranks = np.argsort(keys)
        self._keys = keys[self._ranks]
        self._merges = merges
        self._vocab = vocab
        self._seen: dict[tuple[int, int], tuple[int, int] | None] = {}

    def find(self, left: int, right: int) -> tuple[int, int] | None:
        """(rank, joined id), or None for a pair that is not merged. Beyond, if the merge is not what its tokens say."""
        try:
            return self._seen[left, right]
        except KeyError:
            found = self._seen[left, right] = self._find(left, right)
            return found

    def fit(self) -> bool:
        """Whether all merges are what their tokens say."""
        token = self._vocab.tokens.__getitem__
        left, right, joined = (map(token, ids) for ids in self._merges.T.tolist())
        return list(map(str.__add__, left, right)) == list(joined)

    def _find(self, left: int, right: int) -> tuple[int, int] | None:
        key = left << 32 | right
        place = int(self._keys.searchsorted(key))
        if place == len(self._keys) or self._keys[place] != key:
            return None
        rank = int(self._ranks[place])
        joined = int(self._merges[rank, 2])
        tokens = self._vocab.tokens
        if tokens[joined] != tokens[left] + tokens[right]:
            raise Beyond
        return rank, joined


class BpeWords:
    """The library's BPE: the best merge first, the leftmost of equals.

    It does not look again at a pair that has waited in the queue if the pair that stands there now gives the same
    token; so neither does this.
    """

    def __init__(self, vocab: Vocab, merges: Merges, split: Callable[[str], list[str]]) -> None:
        self._ids = vocab.ids
        self._merges = merges
        self._split = split
        self._escape_spaces = vocab.pre is None or not vocab.pre.byte_level
        self._whole_first = vocab.pre is not None and vocab.pre.ignore_merges

    def encode(self, text: str) -> list[int]:
        """The ids of a text; Beyond for a character that is no token and cannot be spelt in bytes."""
        if self._escape_spaces:
            text = text.replace(" ", SPM_SPACE)
        return [id for word in self._split(text) for id in self._word(word)]

    def _word(self, word: str) -> list[int]:
        if self._whole_first and word in self._ids:
            return [self._ids[word]]
        return self._merged([id for character in word for id in self._start(character)])

    def _start(self, character: str) -> list[int]:
        id = self._ids.get(character)
        if id is not None:
            return [id]
        spelt = [self._ids.get(f"<0x{byte:02X}>") for byte in character.encode()] if self._escape_spaces else []
        known = [id for id in spelt if id is not None]
        if not known or len(known) < len(spelt):
            raise Beyond
        return known

    def _merged(self, ids: list[int]) -> list[int]:
        """`ids` after all merges. A place that was merged into the one before it is -1."""
        find, n = self._merges.find, len(ids)
        before, after = list(range(-1, n - 1)), list(range(1, n + 1))
        queue = [(*found, i) for i in range(n - 1) if (found := find(ids[i], ids[i + 1]))]
        queue = [(rank, i, joined) for rank, joined, i in queue]
        heapq.heapify(queue)
        while queue:
            _, i, joined = heapq.heappop(queue)
            right = after[i]
            if ids[i] < 0 or right >= n:
                continue
            now = find(ids[i], ids[right])
            if now is None or now[1] != joined:
                continue
            ids[i], ids[right] = joined, -1
            after[i] = after[right]
            if after[i] < n:
                before[after[i]] = i
            for left, next in ((before[i], i), (i, after[i])):
                if left >= 0 and next < n and (found := find(ids[left], ids[next])):
                    heapq.heappush(queue, (found[0], left, found[1]))
        return [id for id in ids if id >= 0]


class ShortFirst:
    """Short texts by `short`, the rest by the library, which `build` makes when it is first needed."""

    def __init__(self, short: BpeWords, build: Callable[[], Words]) -> None:
        self._short = short
        self._build = build
        self._library: Words | None = None
        self._n_left = N_SHORT
        self._lock = Lock()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        self._n_left -= sum(map(len, texts))
        if self._library is None and self._n_left >= 0:
            try:
                return [self._short.encode(text) for text in texts]
            except Beyond:
                pass
        return self.library().encode(texts)

    def library(self) -> Words:
        """The library, built now if it is not yet."""
        with self._lock:
            if self._library is None:
                self._library = self._build()
            return self._library
