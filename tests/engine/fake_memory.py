"""One sequence as two lists, under the operations of llama.cpp's memory: what a position-moving loop is tested with."""

from collections.abc import Iterable
from typing import Any


class FakeMemory:
    """Sequence 0 and no other. `operations` lists what was called, without questions."""

    def __init__(self, can_shift: bool = True) -> None:
        self.can_shift = can_shift
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.operations: list[tuple[Any, ...]] = []

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    def sequence(self, seq_id: int) -> "FakeMemory":
        assert seq_id == 0
        return self

    def feed(self, tokens: Iterable[int]) -> None:
        """Tokens at the positions after the last."""
        for token in tokens:
            self.positions.append(self.seq_pos_max(0) + 1)
            self.tokens.append(token)

    def clear(self) -> None:
        self.tokens, self.positions = [], []

    def seq_rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        self.operations.append(("rm", p0, p1))
        kept = [i for i, p in enumerate(self.positions) if not self._inside(p, p0, p1)]
        self.tokens, self.positions = [self.tokens[i] for i in kept], [self.positions[i] for i in kept]
        return True

    def seq_add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        self.operations.append(("add", p0, p1, delta))
        self.positions = [p + delta if self._inside(p, p0, p1) else p for p in self.positions]

    def seq_div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        self.operations.append(("div", p0, p1, d))
        self.positions = [p // d if self._inside(p, p0, p1) else p for p in self.positions]

    def seq_pos_max(self, seq_id: int) -> int:
        return max(self.positions, default=-1)

    @staticmethod
    def _inside(p: int, p0: int, p1: int) -> bool:
        return max(p0, 0) <= p and (p1 < 0 or p < p1)
