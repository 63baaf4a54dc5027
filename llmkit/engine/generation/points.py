"""Places to which a sequence can go back where its memory has windows, which let go of what lies behind them.

Owns copies of the sequence's beginnings, which share its cells and keep those that a window would have dropped.
Knows nothing of messages.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from llmkit.engine.common_prefix import n_common

N_POINTS = 4
"""Each costs the tokens of one window, in layers that have one, and may cost two blocks of 32 cells in all layers."""


class SequenceMemory(Protocol):
    """What is needed of a context's memory."""

    @property
    def rewind(self) -> Literal["any", "points", "none"]: ...

    def sequence(self, seq_id: int) -> Any: ...

    def seq_rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool: ...

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None: ...


class Points:
    """The last N_POINTS points of the sequence `seq_id`, in the sequences with the ids behind it.

    All are beginnings of the sequence, so a context with n_seq_max = 1 + N_POINTS has room for them. Without windows a
    sequence can be cut anywhere, and there are none.
    """

    def __init__(self, memory: SequenceMemory, seq_id: int) -> None:
        self._memory, self._seq_id = memory, seq_id
        self._kept: list[int] = []  # oldest first
        n_points = N_POINTS if memory.rewind == "points" else 0
        self._free = list(range(seq_id + 1, seq_id + 1 + n_points))

    @property
    def are_needed(self) -> bool:
        """Whether the memory has windows."""
        return bool(self._kept or self._free)

    def keep(self) -> None:
        """The sequence can go back to where it is now; of too many points the oldest goes."""
        if not self._free and self._kept:
            self._drop(self._kept[0])
        if self._free:
            point = self._free.pop()
            self._memory.seq_cp(self._seq_id, point)
            self._kept.append(point)

    def cut_back(self, ids: Sequence[int]) -> int:
        """Leaves in the sequence what it shares with ids, as much as is possible and less than all; how much that is.

        Points that are no beginning of ids, or all of them, are forgotten.
        """
        for point in [point for point in self._kept if not _begins(self._tokens(point), ids)]:
            self._drop(point)
        held = self._tokens(self._seq_id)
        n = min(n_common(held, ids), len(ids) - 1)
        if n == len(held) or self._memory.seq_rm(self._seq_id, n, -1):
            return n
        self._memory.seq_rm(self._seq_id)
        nearest = max(self._kept, key=lambda point: len(self._tokens(point)), default=None)
        if nearest is None:
            return 0
        self._memory.seq_cp(nearest, self._seq_id)
        return len(self._tokens(nearest))

    def _tokens(self, seq_id: int) -> list[int]:
        tokens: list[int] = np.asarray(self._memory.sequence(seq_id).tokens).tolist()
        return tokens

    def _drop(self, point: int) -> None:
        self._memory.seq_rm(point)
        self._kept.remove(point)
        self._free.append(point)


def _begins(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether b is a and more."""
    return len(a) < len(b) and a == b[: len(a)]
