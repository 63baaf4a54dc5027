"""Finding strings in a vocabulary by hash, many at a time.

Owns 64-bit polynomial hashes of all tokens and of all their prefixes, suffixes and concatenations, and a table from
hash to token id. A hash is the sum of c[i] * base**i modulo 2**64 over mixed code points, so the hash of a part and of
a concatenation follow from sums. Equal hashes are taken for equal strings: whoever uses the ids compares the strings in
the end (spm_merges.py does).
"""

import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_BUCKET_BITS = 20


class StringHashes:
    """Hashes of `tokens`; `findable` (bool, one per token) says which of them `find` knows.

    `n_chars` and `start` (int64) give each token's length in code points and where it begins in the concatenation of
    all tokens.
    """

    def __init__(self, tokens: Sequence[str], findable: npt.NDArray[np.bool_]) -> None:
        codes = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        self.n_chars: I64 = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        ends = np.cumsum(self.n_chars)
        self.start: I64 = ends - self.n_chars
        longest = int(self.n_chars.max(initial=0))
        # Random, so that no file can be made whose tokens collide; odd, so that it has an inverse.
        base = secrets.randbits(64) | 1
        self.power = _powers(base, longest + 1)
        self._inverse_power = _powers(pow(base, -1, 1 << 64), longest + 1)
        position = np.arange(len(codes), dtype=np.int64) - np.repeat(self.start, self.n_chars)
        self._sums: U64 = np.zeros(len(codes) + 1, dtype=np.uint64)
        np.cumsum(_mixed(codes) * self.power[position], out=self._sums[1:])
        self.whole: U64 = self._sums[ends] - self._sums[self.start]
        self._fill_table(np.flatnonzero(findable).astype(np.int32))

    def prefix(self, ids: I32, n: I64) -> U64:
        """The hashes of the first `n[i]` code points of token `ids[i]`."""
        start = self.start[ids]
        hashes: U64 = self._sums[start + n] - self._sums[start]
        return hashes

    def suffix(self, ids: I32, n: I64) -> U64:
        """The hashes of token `ids[i]` without its first `n[i]` code points."""
        start = self.start[ids]
        hashes: U64 = (self._sums[start + self.n_chars[ids]] - self._sums[start + n]) * self._inverse_power[n]
        return hashes

    def joined(self, left: I32, right: I32) -> U64:
        """The hashes of the concatenations of token `left[i]` and token `right[i]`."""
        hashes: U64 = self.whole[left] + self.whole[right] * self.power[self.n_chars[left]]
        return hashes

    def find(self, hashes: U64) -> I32:
        """The id of the findable token with each hash, or -1."""
        found = np.full(len(hashes), -1, dtype=np.int32)
        bucket = _bucket(hashes)
        place, end = self._bucket_start[bucket], self._bucket_start[bucket + 1]
        open_ = np.flatnonzero(place < end)
        while len(open_):
            here = place[open_]
            hit = self._sorted_hashes[here] == hashes[open_]
            found[open_[hit]] = self._sorted_ids[here[hit]]
            open_ = open_[~hit]
            place[open_] += 1
            open_ = open_[place[open_] < end[open_]]
        return found

    def _fill_table(self, ids: I32) -> None:
        order = np.argsort(self.whole[ids], kind="stable")
        self._sorted_ids: I32 = ids[order]
        self._sorted_hashes: U64 = self.whole[self._sorted_ids]
        counts = np.bincount(_bucket(self._sorted_hashes), minlength=1 << _BUCKET_BITS)
        self._bucket_start: I32 = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(counts, out=self._bucket_start[1:])


def _bucket(hashes: U64) -> I64:
    return (hashes >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


def _powers(base: int, count: int) -> U64:
    """base**0 .. base**(count - 1) modulo 2**64."""
    factors = np.full(count, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _mixed(codes: npt.NDArray[np.uint32]) -> U64:
    """Spread code points over 64 bits (the finishing steps of splitmix64)."""
    x = codes.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
