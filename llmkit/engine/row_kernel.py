"""Runs one kernel over rows on an engine's threads, beside the plan of the model.

Owns the argument block and the one-step plan. Knows nothing of what the kernel computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmkit.engine.thread_team import ThreadTeam
from llmkit.kernels.plan import PLAN_FIELDS


class RowKernel:
    """A kernel, its field names (counter and number of rows come first), and the team that runs it."""

    def __init__(self, team: ThreadTeam, kernel: Any, fields: Sequence[str]) -> None:
        self._team, self._fields = team, fields[2:]
        self._counter, self._n_rows = np.zeros(8, np.int64), np.zeros(1, np.int64)
        self._args = np.zeros(len(fields), np.int64)
        self._args[:2] = self._counter.ctypes.data, self._n_rows.ctypes.data
        self._kernels, self._blocks = np.array([kernel.address], np.int64), np.array([self._args.ctypes.data], np.int64)
        self._groups = np.array([0, 1], np.int64)
        places = dict(
            n_ops=1, n_groups=1, kernels=self._kernels.ctypes.data, args=self._blocks.ctypes.data,
            group_starts=self._groups.ctypes.data, counters=self._counter.ctypes.data,
        )  # fmt: skip
        self._plan = np.array([places[name] for name in PLAN_FIELDS], np.int64)

    def run(self, n_rows: int, **args: Any) -> None:
        """Computes n_rows rows. A value is a number, or an array whose address is meant; all fields must be given."""
        assert set(args) == set(self._fields), set(args) ^ set(self._fields)
        self._n_rows[0] = n_rows
        for i, name in enumerate(self._fields, start=2):
            value = args[name]
            self._args[i] = value.ctypes.data if isinstance(value, np.ndarray) else value
        self._team.run(self._plan.ctypes.data)
