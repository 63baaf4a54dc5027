"""Rows of logits for the tests of sampling, and a vocabulary whose tokens are written down."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmkit.sampling.candidates import Candidates

Row = NDArray[np.float32]


def row(*logits: float) -> Row:
    return np.array(logits, dtype=np.float32)


def log_row(*probs: float) -> Row:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs, dtype=np.float32))


def random_row(n_vocab: int, seed: int = 0, scale: float = 3.0) -> Row:
    return np.random.default_rng(seed).normal(0, scale, n_vocab).astype(np.float32)


def tied_row(n_vocab: int, seed: int = 0) -> Row:
    """Many equal logits."""
    return np.random.default_rng(seed).integers(-4, 4, n_vocab).astype(np.float32)


def all_of(logits: Row) -> Candidates:
    return Candidates.all_of(logits)


def probs_of(candidates: Candidates) -> dict[int, float]:
    """{id: probability}"""
    return dict(zip(candidates.ids.tolist(), candidates.probs.tolist(), strict=True))


class Words:
    """A vocabulary of these pieces; texts are cut greedily, the longest piece first."""

    suppressed_ids: frozenset[int] = frozenset()

    def __init__(self, pieces: Sequence[str | bytes]) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        longest_first = sorted((p for p in self.pieces if p), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(p) for p in longest_first))

    def piece_bytes(self, id: int, special: bool = False) -> bytes:
        return self.pieces[id]

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        assert not add_special
        assert not parse_special
        return [self.pieces.index(piece) for piece in self._pattern.findall(text.encode())]
