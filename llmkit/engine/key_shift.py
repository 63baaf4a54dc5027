"""Turns keys in their cells on a context's threads. Knows nothing of sequences or of why positions changed."""

from __future__ import annotations

import numpy as np

from llmkit.engine.thread_team import ThreadTeam
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import Columns
from llmkit.memory.kinds import MemoryLayout
from llmkit.memory.kv_cache import KvCache
from llmkit.models.inputs import PlanInputs
from llmkit.models.model import Model
from llmkit.models.plan import Plan

_ROWS = 256  # tokens turned in one pass


class KeyShift:
    """The plan, built when it is first needed."""

    def __init__(self, model: Model, layout: MemoryLayout, kv: KvCache, team: ThreadTeam, n_ctx: int) -> None:
        self._model, self._layout, self._kv, self._team, self._n_ctx = model, layout, kv, team, n_ctx
        self._inputs = PlanInputs(_ROWS)
        self._plan: Plan | None = None

    def turn(self, deltas: Columns, cells: Columns, rotated: Columns) -> None:
        """See memory.shifts.Turn. A pass turns its keys and marks them, or does nothing, wherever it is interrupted."""
        if self._plan is None:
            addresses = [pool.addresses.ctypes.data for pool in self._kv.pools]
            graph, done = self._model.build_key_shift(self._inputs, self._layout, addresses, self._n_ctx)
            self._plan = Plan(graph, done, _ROWS, self._team.n_threads)
        for first in range(0, deltas.size, _ROWS):
            rows = slice(first, first + _ROWS)
            n, inputs = deltas[rows].size, self._inputs
            inputs.positions[:n], inputs.rotated[:n] = deltas[rows], rotated[rows]
            for k, pool in enumerate(self._kv.pools):
                here = cells[k, rows]
                inputs.blocks[k, :n] = np.where(here < 0, 0, pool.addresses[here // BLOCK_CELLS])
                inputs.cells[k, :n] = here % BLOCK_CELLS
            inputs.counts[0] = n
            self._team.run(self._plan.address)
