"""Which waiting job gets a slot next: in which order, and whether its cells can be had. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmkit.engine.scheduling.job import Job, Phase
from llmkit.engine.scheduling.sharing import Wait
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.prefix_tree import PrefixTree

FORESEEN = 256  # tokens of an answer: beyond these cells are not set aside, and a job may have to be parked
LOOKED_AT = 32  # waiting jobs, the longest waiting first: more are not compared


def order(queue: Sequence[Job], shared: dict[Job, int], now: float, overdue_s: float) -> list[Job]:
    """Those who have waited too long first, by age; then those with the longest prefix in memory, then by age."""

    def key(job: Job) -> tuple[bool, int, tuple[int, int]]:
        overdue = now - job.handle.submitted >= overdue_s
        return not overdue, 0 if overdue else -shared.get(job, 0), job.order

    return sorted(queue, key=key)


def n_ahead(job: Job, n_have: int, n_ctx: int) -> int:
    """Tokens that it will want cells for, if it has or shares n_have already."""
    n_answer = FORESEEN if job.n_remain < 0 else min(job.n_remain, FORESEEN)
    n_goal = job.n_done if job.phase is Phase.GENERATING else job.goal.size
    return max(0, min(n_goal + n_answer, n_ctx) - n_have)


class Cells:
    """How many blocks can be had: free ones, and those of cached prefixes that nobody uses.

    n_chunk: tokens computed at once, at most; n_ctx: tokens of a text, at most.
    """

    def __init__(self, kv: KvCache, tree: PrefixTree, n_chunk: int, n_ctx: int) -> None:
        self._kv, self._tree, self._n_chunk, self._n_ctx = kv, tree, n_chunk, n_ctx

    def fit(self, jobs: Iterable[Job], waits: Iterable[Wait] = ()) -> bool:
        """Whether all of these jobs can go on side by side. waits: who will not compute all of its prompt itself."""
        jobs, joins = list(jobs), {wait.job: wait.n for wait in waits}
        for k, pool in enumerate(self._kv.pools):
            n_wanted = 0
            for job in jobs:
                n_wanted += self._n_blocks(job, k, max(job.n_done, joins.get(job, 0)))
            if n_wanted > pool.n_free and n_wanted > pool.n_free + self._tree.n_evictable(k):
                return False
        return True

    def _n_blocks(self, job: Job, k: int, n_have: int) -> int:
        """Blocks of kind k that a job will take which has n_have tokens: a window slides, and needs only itself."""
        kind, n_more = self._kv.kinds[k], n_ahead(job, n_have, self._n_ctx)
        n = -(-n_more // BLOCK_CELLS) + (n_have % BLOCK_CELLS > 0)
        if not kind.window:
            return n
        n_held = 0 if job.seq is None else job.seq.chain.blocks(k).size
        return min(n, max(0, kind.n_blocks(n_have + n_more, self._n_chunk) - n_held))
