"""Lowers a graph to a plan: buffers for its values, barriers where threads must meet, addresses for everything."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from llmkit.kernels.plan import PLAN_FIELDS
from llmkit.models.graph import SCRATCH, Graph, Op, Value
from llmkit.models.weights import Matrix

_LINE = 64  # bytes of a cache line


def find_barriers(ops: list[Op]) -> list[bool]:
    """Whether threads meet before each operation: it reads what was written since they met, or writes what was used."""
    barriers = []
    read: set[Value] = set()
    written: set[Value] = set()
    for op in ops:
        meet = bool(written & set(op.reads) or (written | read) & set(op.writes))
        if meet:
            read, written = set(), set()
        read |= set(op.reads)
        written |= set(op.writes)
        barriers.append(meet)
    return barriers


def place_values(ops: list[Op], barriers: list[bool], n_rows: int, kept: list[Value]) -> tuple[dict[Value, int], int]:
    """Offset of each value in one arena, and its size.

    A value's memory is used again once all threads have met after its last use; `kept` values stay for the caller.
    """
    group = np.cumsum(barriers).tolist()
    last = {value: group[i] for i, op in enumerate(ops) for value in op.reads + op.writes}
    offsets: dict[Value, int] = {}
    free: defaultdict[int, list[int]] = defaultdict(list)
    live: list[tuple[Value, int]] = []
    size = 0
    for i, op in enumerate(ops):
        for value, n in [entry for entry in live if last[entry[0]] < group[i]]:
            live.remove((value, n))
            if value not in kept:
                free[n].append(offsets[value])
        for value in op.writes:
            n = -(-(value.n_bytes(n_rows) + _LINE) // _LINE) * _LINE
            if value in offsets:
                continue
            if free[n]:
                offsets[value] = free[n].pop()
            else:
                offsets[value], size = size, size + n
            live.append((value, n))
    return offsets, size


class Plan:
    """A graph with its memory, for up to `n_rows_max` rows and `n_threads` threads. `address` is what a team runs."""

    def __init__(self, graph: Graph, output: Value, n_rows_max: int, n_threads: int) -> None:
        self.graph, self._output = graph, output
        ops, barriers = graph.ops, find_barriers(graph.ops)
        # Logits get memory of their own: address space for all rows, of which the system commits what is written.
        others = [
            Op(op.name, op.kernel, op.fields, op.args, self._without(op.reads), self._without(op.writes)) for op in ops
        ]
        offsets, size = place_values(others, barriers, n_rows_max, [])
        self._arena = _aligned(size)
        self._scratch = _aligned(n_threads * max((op.args.get("scratch_bytes", 0) for op in ops), default=0))
        n_out_rows = -(-n_rows_max // 8) * 8
        self._logits = np.empty((n_out_rows, output.stride // 4), np.float32)
        self._addresses = {value: self._arena.ctypes.data + offset for value, offset in offsets.items()}
        self._addresses |= {SCRATCH: self._scratch.ctypes.data, output: self._logits.ctypes.data}
        self._build(ops, barriers)

    def _without(self, values: list[Value]) -> list[Value]:
        return [value for value in values if value is not self._output]

    def _build(self, ops: list[Op], barriers: list[bool]) -> None:
        self._counters = np.zeros((len(ops) + 1, _LINE // 8), np.int64)
        self._kernels = np.array([op.kernel for op in ops], np.int64)
        self._blocks = [self._arguments(op, i) for i, op in enumerate(ops)]
        self._args = np.array([block.ctypes.data for block in self._blocks], np.int64)
        self._barriers = np.array(barriers, np.int64)
        self._meeting = np.zeros(3 * _LINE // 8, np.int64)
        fields = dict(
            n_ops=len(ops), kernels=self._kernels.ctypes.data, args=self._args.ctypes.data,
            barriers=self._barriers.ctypes.data, counters=self._counters.ctypes.data, barrier=self._meeting.ctypes.data,
        )  # fmt: skip
        self._plan = np.array([fields[name] for name in PLAN_FIELDS], np.int64)

    def _arguments(self, op: Op, i: int) -> npt.NDArray[Any]:
        args = dict(op.args, counter=self._counters[i].ctypes.data)
        return np.array([self._resolve(args[name]) for name in op.fields], np.int64)

    def _resolve(self, arg: int | Value | Matrix) -> int:
        if isinstance(arg, Value):
            return self._addresses[arg]
        if isinstance(arg, Matrix):
            assert arg.packed, f"{arg.name} was never packed"
            return arg.packed
        return arg

    @property
    def address(self) -> int:
        return self._plan.ctypes.data

    @property
    def logits(self) -> npt.NDArray[Any]:
        """float32 [rows][n_vocab]: what the last run wrote, a view."""
        return self._logits[:, : self._output.n_cols]

    @property
    def n_bytes(self) -> int:
        """Memory for values and scratch, without logits."""
        return self._arena.nbytes + self._scratch.nbytes


def _aligned(n_bytes: int) -> npt.NDArray[Any]:
    """uint8 [n_bytes] that starts on a cache line."""
    raw = np.zeros(n_bytes + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + n_bytes]
