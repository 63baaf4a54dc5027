"""The merges of an SPM vocabulary, which its file does not hold, rebuilt from the scores.

SentencePiece joins the two neighbours whose concatenation is the token with the best score, leftmost first. The
`tokenizers` library wants that as a ranked list of pairs. Every split of every token into two tokens would do (514,847
pairs in gemma-3, 0.6 s to hand over); but joining is deterministic, so inside any text a token arises from the one pair
that it arises from alone, and a pair that cannot arise is left out (236,337 remain). Owns that argument; knows nothing
about files, caches or special tokens.

A pair (l, r) cannot arise when, at some moment before both exist, the last symbol of l's side and the first of r's are
themselves a token better than what was joined instead. Going backwards in time from (l, r), the side that was made last
is opened. When a token was made: `made`, the worst score joined on the way to it (all joins at or above a threshold
happen before any below). Equal scores, and tokens that may arise in two ways, prove nothing: the pair stays, which is
harmless.

Order among equal scores: longer tokens first, then ids. For runs of one character (the usual equals) that is leftmost
first.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .string_hashes import I32, I64, StringHashes

F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

_CHUNK = 1 << 18
_MAX_PROVED = 64
"""Pairs of tokens longer than this stay without proof, so that a vocabulary of very long tokens costs no more than a
plain one.
"""


def rebuild_merges(tokens: Sequence[str], scores: F32, formable: Bool) -> I32:
    """Pairs of token ids (int32 [n_merges, 2]), best first, that turn characters into tokens as SentencePiece does.

    `tokens` are distinct, `scores` float32 without NaN; only tokens that are `formable` may result from or take part in
    joining.
    """
    while True:
        hashes = StringHashes(tokens, formable)
        target, left, right = _splits(hashes, formable)
        keep = _Prover(hashes, scores).keep(target, left, right)
        target, left, right = target[keep], left[keep], right[keep]
        order = np.lexsort((right, left, -hashes.n_chars[target], -scores[target]))
        target, left, right = target[order], left[order], right[order]
        columns = zip(target.tolist(), left.tolist(), right.tolist(), strict=True)
        if all(tokens[a] + tokens[b] == tokens[t] for t, a, b in columns):
            return np.stack((left, right), axis=1)
        # Two strings had one hash: never seen, and gone with the next random base.


def _splits(hashes: StringHashes, formable: Bool) -> tuple[I32, I32, I32]:
    """(token, left id, right id) of every split of a formable token into two formable tokens, shorter tokens first."""
    parts: list[tuple[I32, I32, I32]] = []
    ids = np.flatnonzero(formable & (hashes.n_chars > 1)).astype(np.int32)
    ids = ids[np.argsort(hashes.n_chars[ids], kind="stable")]
    ends = np.cumsum(hashes.n_chars[ids] - 1)
    n_done = 0
    while n_done < len(ids):
        before = ends[n_done - 1] if n_done else 0
        n_next = max(int(np.searchsorted(ends, before + _CHUNK, side="right")), n_done + 1)
        parts.append(_splits_of(hashes, ids[n_done:n_next]))
        n_done = n_next
    if not parts:
        return (np.empty(0, np.int32),) * 3
    target, left, right = (np.concatenate(column) for column in zip(*parts, strict=True))
    return target, left, right


def _splits_of(hashes: StringHashes, ids: I32) -> tuple[I32, I32, I32]:
    n_cuts = hashes.n_chars[ids] - 1
    target = np.repeat(ids, n_cuts)
    cut: I64 = np.arange(len(target), dtype=np.int64) - np.repeat(np.cumsum(n_cuts) - n_cuts, n_cuts) + 1
    left = hashes.find(hashes.prefix(target, cut))
    target, cut, left = target[left >= 0], cut[left >= 0], left[left >= 0]
    right = hashes.find(hashes.suffix(target, cut))
    return target[right >= 0], left[right >= 0], right[right >= 0]


class _Prover:
    """Decides which splits stay. Goes by length, because what a token arises from depends on shorter ones only."""

    def __init__(self, hashes: StringHashes, scores: F32) -> None:
        self.hashes = hashes
        self.scores = scores
        n_vocab = len(scores)
        self.left: I32 = np.full(n_vocab, -1, dtype=np.int32)
        self.right: I32 = np.full(n_vocab, -1, dtype=np.int32)
        # +inf: a character, there from the beginning. NaN: unknown, so every comparison fails and nothing is proved.
        # -inf: never made.
        self.made: F32 = np.where(hashes.n_chars > 1, np.float32(-np.inf), np.float32(np.inf))
        self.alive: Bool = hashes.n_chars == 1

    def keep(self, target: I32, left: I32, right: I32) -> Bool:
        """Which of the splits, sorted by the length of `target`, may arise."""
        keep = np.ones(len(target), dtype=np.bool_)
        lengths = self.hashes.n_chars[target]
        start = 0
        while start < len(target):
            n = int(lengths[start])
            end = int(np.searchsorted(lengths, n, side="right")) if n <= _MAX_PROVED else len(target)
            level = slice(start, end)
            if n <= _MAX_PROVED:
                keep[level] = self._may_arise(left[level], right[level])
                self._learn(target[level][keep[level]], left[level][keep[level]], right[level][keep[level]])
            start = end
        return keep

    def _may_arise(self, left: I32, right: I32) -> Bool:
        may = self.alive[left] & self.alive[right]
        rows = np.flatnonzero(may)
        a, b = left[rows], right[rows]
        while len(rows):
            a_last, b_last = self.made[a] < self.made[b], self.made[b] < self.made[a]
            opened = a_last | b_last
            rows, a, b, a_last, b_last = rows[opened], a[opened], b[opened], a_last[opened], b_last[opened]
            ended = np.where(a_last, self.made[a], self.made[b])
            a, b = np.where(a_last, self.right[a], a), np.where(b_last, self.left[b], b)
            joint = self.hashes.find(self.hashes.joined(a, b))
            beaten = (joint >= 0) & (self.scores[joint] > ended) & (self.made[a] > ended) & (self.made[b] > ended)
            may[rows[beaten]] = False
            rows, a, b = rows[~beaten], a[~beaten], b[~beaten]
        return may

    def _learn(self, target: I32, left: I32, right: I32) -> None:
        """Remember what the tokens of one length arise from; `target` may hold a token several times."""
        self.alive[target] = True
        first = np.ones(len(target), dtype=np.bool_)
        first[1:] = target[1:] != target[:-1]
        single = first.copy()
        single[:-1] &= first[1:]
        self.made[target] = np.float32(np.nan)
        t, a, b = target[single], left[single], right[single]
        self.left[t], self.right[t] = a, b
        self.made[t] = np.minimum(self.scores[t], np.minimum(self.made[a], self.made[b]))
