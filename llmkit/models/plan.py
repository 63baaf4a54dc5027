"""Lowers a graph to a plan: buffers for its values, barriers where threads must meet, addresses for everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from llmkit.kernels import chain
from llmkit.kernels.plan import PLAN_FIELDS
from llmkit.models.graph import SCRATCH, Graph
from llmkit.models.values import LINE, Op, Slots, Value, chain_rows, find_barriers, place_values
from llmkit.models.weights import Matrix


class Plan:
    """A graph with its memory, for up to `n_rows_max` rows and `n_threads` threads. `address` is what a team runs."""

    def __init__(self, graph: Graph, output: Value, n_rows_max: int, n_threads: int) -> None:
        self.graph, self._output = graph, output
        steps = chain_rows(graph.ops)
        barriers = find_barriers(steps)
        offsets, size = place_values(steps, barriers, n_rows_max, output)
        self._arena = _aligned(size)
        self._scratch = _aligned(n_threads * max(op.args.get("scratch_bytes", 0) for op in graph.ops))
        # Logits get memory of their own: address space for all rows, of which the system commits what is written.
        self._logits = np.empty((-(-n_rows_max // 8) * 8, output.stride // 4), np.float32)
        self._addresses = {value: self._arena.ctypes.data + offset for value, offset in offsets.items()}
        self._addresses |= {SCRATCH: self._scratch.ctypes.data, output: self._logits.ctypes.data}
        self._kept: list[npt.NDArray[np.int64]] = []
        self._build(steps, barriers)

    def _build(self, steps: list[list[Op]], barriers: list[bool]) -> None:
        self._counters = np.zeros((len(steps), LINE // 8), np.int64)
        lowered = [self._lower(step, self._counters[i].ctypes.data) for i, step in enumerate(steps)]
        kernels, args = (self._array(column) for column in zip(*lowered, strict=True))
        starts = [i for i, meet in enumerate(barriers) if meet or i == 0]
        fields = dict(
            n_ops=len(steps), n_groups=len(starts), kernels=kernels, args=args,
            group_starts=self._array([*starts, len(steps)]), counters=self._counters.ctypes.data,
        )  # fmt: skip
        self.address = self._array([fields[name] for name in PLAN_FIELDS])

    def _array(self, numbers: Iterable[int]) -> int:
        """Address of these numbers as int64, kept as long as the plan."""
        self._kept.append(np.array(list(numbers), np.int64))
        return self._kept[-1].ctypes.data

    def _lower(self, step: list[Op], counter: int) -> tuple[int, int]:
        """Addresses of the kernel and of the argument block that do this step."""
        if not step[0].by_rows:
            return step[0].kernel, self._arguments(step[0], counter)
        pairs = [number for op in step for number in (op.kernel, self._arguments(op, 0))]
        rows = step[0].writes[0].rows
        slot_rows = self._resolve(rows.tokens) if isinstance(rows, Slots) and rows.tokens else 0
        n_rows = self._resolve(self.graph.n_rows_at(rows))
        return chain.chain.address, self._array([counter, n_rows, len(step), self._array(pairs), slot_rows])

    def _arguments(self, op: Op, counter: int) -> int:
        args = dict(op.args, counter=counter)
        return self._array(self._resolve(args[name]) for name in op.fields)

    def _resolve(self, arg: int | Value | Matrix) -> int:
        if isinstance(arg, Value):
            return self._addresses[arg]
        if isinstance(arg, Matrix):
            assert arg.packed, f"{arg.name} was never packed"
            return arg.packed
        return arg

    @property
    def logits(self) -> npt.NDArray[Any]:
        """float32 [rows][n_vocab]: what the last run wrote, a view."""
        return self._logits[:, : self._output.n_cols]

    @property
    def arena_bytes(self) -> int:
        """Memory for values, without logits."""
        return self._arena.nbytes

    @property
    def n_bytes(self) -> int:
        """Memory for values and scratch, without logits."""
        return self._arena.nbytes + self._scratch.nbytes


def _aligned(n_bytes: int) -> npt.NDArray[Any]:
    """uint8 [n_bytes] that starts on a cache line."""
    raw = np.zeros(n_bytes + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + n_bytes]
