"""What a graph is made of: values (rows of numbers) and operations on them; and how values share memory.

Knows no kernels, so that sizes can be told without compiling anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmkit.kernels import activation_tile as at

LINE = 64  # bytes of a cache line


@dataclass(eq=False)
class Value:
    """Rows of `stride` bytes, or groups of 8 rows of quantised activations: of all tokens, of the outputs, or of slots.

    For slots `rows` is the value that begins with their number. `fixed`: bytes whatever the number of rows.
    """

    name: str
    n_cols: int
    stride: int
    group_bytes: int = 0
    rows: str | Slots = "tokens"
    fixed: int = 0

    def n_bytes(self, n_rows: int) -> int:
        """Room for n_rows rows, rounded up to groups of 8: a matmul may write whole groups."""
        if isinstance(self.rows, Slots):
            n_rows = n_rows * self.rows.n_used + at.GROUP * self.rows.n_expert
        groups = -(-n_rows // at.GROUP)
        return self.fixed + groups * (self.group_bytes or at.GROUP * self.stride)


@dataclass(eq=False)
class Slots(Value):
    """A mixture's slots (see kernels.experts). `picks` tells each token's slots, `tokens` each slot's token."""

    n_expert: int = 0
    n_used: int = 0
    picks: Value | None = None
    tokens: Value | None = None


@dataclass
class Op:
    """A kernel, its argument names, and their values: numbers, or Values whose address is meant.

    by_rows: a row kernel, which needs nothing of other rows.
    """

    name: str
    kernel: int
    fields: Sequence[str]
    args: dict[str, Any]
    reads: list[Value]
    writes: list[Value]
    by_rows: bool = False


def row_stride(n_cols: int) -> int:
    """Bytes of a row of n_cols float32, rounded up to whole vectors."""
    return -(-n_cols // 16) * 64


def chain_rows(ops: list[Op]) -> list[list[Op]]:
    """Runs of row kernels over the same rows become one step; every other operation is a step alone."""
    steps: list[list[Op]] = []
    for op in ops:
        if steps and op.by_rows and steps[-1][-1].by_rows and steps[-1][-1].writes[0].rows == op.writes[0].rows:
            steps[-1].append(op)
        else:
            steps.append([op])
    return steps


def find_barriers(steps: list[list[Op]]) -> list[bool]:
    """Whether threads meet before each step: it reads what was written since they met, or writes what was used."""
    barriers = []
    read: set[Value] = set()
    written: set[Value] = set()
    for step in steps:
        reads = {value for op in step for value in op.reads}
        writes = {value for op in step for value in op.writes}
        meet = bool(written & reads or (written | read) & writes)
        if meet:
            read, written = set(), set()
        read |= reads
        written |= writes
        barriers.append(meet)
    return barriers


def place_values(
    steps: list[list[Op]], barriers: list[bool], n_rows: int, elsewhere: Value
) -> tuple[dict[Value, int], int]:
    """Offset of each value but `elsewhere` in one arena, and its size.

    A value's memory is used again once all threads have met after its last use.
    """
    group = np.cumsum(barriers).tolist()
    last = {value: group[i] for i, step in enumerate(steps) for op in step for value in op.reads + op.writes}
    offsets: dict[Value, int] = {}
    free: defaultdict[int, list[int]] = defaultdict(list)
    live: list[tuple[Value, int]] = []
    size = 0
    for i, step in enumerate(steps):
        for value, n in [entry for entry in live if last[entry[0]] < group[i]]:
            live.remove((value, n))
            free[n].append(offsets[value])
        for value in [value for op in step for value in op.writes]:
            if value in offsets or value is elsewhere:
                continue
            n = -(-(value.n_bytes(n_rows) + LINE) // LINE) * LINE
            if free[n]:
                offsets[value] = free[n].pop()
            else:
                offsets[value], size = size, size + n
            live.append((value, n))
    return offsets, size
