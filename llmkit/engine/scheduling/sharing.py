"""Who computes a prefix that several jobs need, and who waits for it. Pure decisions about jobs that have slots.

Of two that share a prefix the one that is further along computes it, of two as far the one that came first; the other
joins in where they part. Relation and order are strict, so that nobody ever waits in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from llmkit.engine.common_prefix import n_common_ids
from llmkit.engine.scheduling.job import Job, Phase

WORTH_WAITING = 32  # tokens: for less, computing them twice is quicker than a step's delay


class Wait(NamedTuple):
    """`job` waits until `leader` has its first `n` tokens."""

    job: Job
    leader: Job
    n: int


def find_waits(jobs: Iterable[Job]) -> list[Wait]:
    """Who waits for whom, of jobs whose prompts are not yet computed."""
    prompts = [job for job in jobs if job.phase in (Phase.WAITING, Phase.PROMPT)]
    waits = [_wait(job, prompts) for job in prompts]
    return [wait for wait in waits if wait is not None]


def _wait(job: Job, prompts: Sequence[Job]) -> Wait | None:
    """The leader with whom it shares most, if one is ahead of it in a prefix worth waiting for."""
    best: Wait | None = None
    for leader in prompts:
        if leader is job or leader.writes is None or leader.writes not in job.reads or not leader.clean:
            continue
        if (leader.n_done, _earlier(leader)) <= (job.n_done, _earlier(job)):
            continue
        n = min(_common(job, leader), job.goal.size - 1)
        if leader.n_done < n and n - job.n_done >= WORTH_WAITING and (best is None or n > best.n):
            best = Wait(job, leader, n)
    return best


def _earlier(job: Job) -> tuple[int, int]:
    number, index = job.order
    return -number, -index


def _common(a: Job, b: Job) -> int:
    """The length of their common prefix, computed once."""
    if b.order not in a.common:
        a.common[b.order] = b.common[a.order] = n_common_ids(a.goal, b.goal)
    return a.common[b.order]
