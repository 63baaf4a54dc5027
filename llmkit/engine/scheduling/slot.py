"""A slot: a seat for computing, not the home of a state. What a text had computed lives in the prefix tree.

Owns who sits where and what can be said of it. Knows nothing of steps.
"""

from __future__ import annotations

from llmkit.engine.scheduling.job import Job, Phase
from llmkit.engine.scheduling.requests import SlotInfo, SlotState

_STATES = {
    Phase.QUEUED: SlotState.IDLE,
    Phase.WAITING: SlotState.WAITING,
    Phase.PROMPT: SlotState.PROMPT,
    Phase.GENERATING: SlotState.GENERATING,
}


class Slot:
    """Seat number `id`; `job` sits in it, or nobody. freed_at: orders slots by when they became free."""

    def __init__(self, id: int, n_ctx: int) -> None:
        self.id, self.n_ctx = id, n_ctx
        self.job: Job | None = None
        self.freed_at = 0
        self._last = SlotInfo(id, n_ctx, SlotState.IDLE)

    def leave(self, order: int) -> None:
        """The job goes; what it did stays to be told."""
        assert self.job is not None
        self._last, self.job, self.freed_at = _info(self, self.job, SlotState.IDLE), None, order

    def info(self) -> SlotInfo:
        """From any thread: at worst it is a step old."""
        job = self.job
        return self._last if job is None else _info(self, job, _STATES[job.phase])


def _info(slot: Slot, job: Job, state: SlotState) -> SlotInfo:
    ids = tuple(job.generation.ids)
    return SlotInfo(
        slot.id, slot.n_ctx, state, job.handle.id, job.request, job.prompt.size, job.n_cached, job.n_computed, len(ids),
        job.n_remain, job.limits.has_new_line, job.n_done, tuple(job.request.prompt_ids), ids,
    )  # fmt: skip


def choose_slot(slots: list[Slot], wanted: int) -> Slot | None:
    """The free slot of this number, or for -1 the one that has been free longest; None if there is none."""
    free = [slot for slot in slots if slot.job is None and wanted in (-1, slot.id)]
    return min(free, key=lambda slot: (slot.freed_at, slot.id), default=None)
