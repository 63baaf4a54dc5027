"""Sequence operations that let a text outgrow the context or the positions that a model was trained on.

Both are lossy, and only done where they were asked for: the keys and values that stay were computed with the tokens
that go, or for other positions. Knows nothing of texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llmkit.errors import UnsupportedError, UsageError


class ShiftableMemory(Protocol):
    """What is needed of a context's memory."""

    @property
    def can_shift(self) -> bool: ...

    def seq_rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool: ...

    def seq_add(self, seq_id: int, p0: int, p1: int, delta: int) -> None: ...

    def seq_div(self, seq_id: int, p0: int, p1: int, d: int) -> None: ...

    def seq_pos_max(self, seq_id: int) -> int: ...


def require_shift(memory: ShiftableMemory, what: str) -> None:
    """UnsupportedError where positions cannot be moved, as `what` would do."""
    if not memory.can_shift:
        raise UnsupportedError(
            f"{what} moves tokens to other positions, which this model's memory cannot do",
            "Give a context that holds the whole text (-c).",
        )


def shift_context(memory: ShiftableMemory, seq_id: int, n_keep: int, n_discard: int) -> int:
    """Forgets n_discard positions behind the first n_keep, and moves up what follows; the next free position.

    UnsupportedError, and nothing changed, where what stays would then see tokens that a window has dropped.
    """
    if not memory.seq_rm(seq_id, n_keep, n_keep + n_discard):
        raise UnsupportedError(
            "a context shift lets tokens see what the sliding window's memory has dropped",
            "With --swa-full it keeps all tokens; else give a context that holds the whole text (-c).",
        )
    memory.seq_add(seq_id, n_keep + n_discard, -1, -n_discard)
    return memory.seq_pos_max(seq_id) + 1


@dataclass
class SelfExtend:
    """Grouped attention (Jin et al. 2024, arXiv:2401.01325): the last `width` tokens keep a position each, and of those
    before `n_grp` share one, so that a text of n_grp times the training context stays within its positions.

    UsageError unless n_grp divides the width.
    """

    n_grp: int
    width: int
    n_windows: int = 0

    def __post_init__(self) -> None:
        if self.n_grp < 1:
            raise UsageError(f"-gan is {self.n_grp}; at least 1 is expected")
        if self.width < 1 or self.width % self.n_grp:
            message = f"the width of self-extend's window (-gaw) is {self.width}, no multiple of -gan {self.n_grp}"
            raise UsageError(message, f"give -gaw {max(1, self.width // self.n_grp) * self.n_grp}")

    def compress(self, memory: ShiftableMemory, seq_id: int, n_past: int) -> int:
        """Groups the window that ends at position n_past, now that another one follows; the next free position.

        The window first goes where it would be without grouping, so that whole groups share a position.
        """
        delta = self.n_windows * (self.width // self.n_grp) * (self.n_grp - 1)
        memory.seq_add(seq_id, n_past - self.width, n_past, delta)
        memory.seq_div(seq_id, n_past - self.width + delta, n_past + delta, self.n_grp)
        self.n_windows += 1
        return memory.seq_pos_max(seq_id) + 1
