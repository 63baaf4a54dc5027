"""Who has a slot and who waits for one, and what each holds of memory: shared when it comes, remembered when it goes.

Owns the slots, the queue and the jobs' sequences. Knows nothing of batches or of what is told to clients.
"""

from __future__ import annotations

from llmkit.engine.context import Context
from llmkit.engine.scheduling.admission import LOOKED_AT, Cells, order
from llmkit.engine.scheduling.job import Job, Phase
from llmkit.engine.scheduling.requests import EngineParams
from llmkit.engine.scheduling.sharing import find_waits
from llmkit.engine.scheduling.slot import Slot, choose_slot
from llmkit.memory.prefix_tree import Match, PrefixTree

_TRIES = 4  # waiting jobs that are tried in a step, when cells are scarce


class Seats:
    """Slots for texts of up to n_ctx tokens over one context."""

    def __init__(self, ctx: Context, tree: PrefixTree, params: EngineParams, n_ctx: int) -> None:
        self.slots = [Slot(i, n_ctx) for i in range(params.n_slots)]
        self.queue: list[Job] = []
        self._ctx, self._tree, self._overdue_s = ctx, tree, params.overdue_s
        self._cells = Cells(ctx.kv, tree, params.max_chunk, n_ctx)
        self._n_left = 0  # jobs that gave up a slot: the order in which slots became free
        self._n_ended = 0  # jobs that are through

    @property
    def running(self) -> list[Job]:
        """The jobs that have slots."""
        return [slot.job for slot in self.slots if slot.job is not None]

    @property
    def jobs(self) -> list[Job]:
        """All that are not through."""
        return [*self.running, *self.queue]

    # -- coming ---------------------------------------------------------------------------------------------------

    def admit(self, now: float) -> list[Job]:
        """Gives free slots to waiting jobs whose cells can be had; those that got one."""
        came = list[Job]()
        while self.queue and any(slot.job is None for slot in self.slots):
            job = self._admit_one(now)
            if job is None:
                break
            came.append(job)
        return came

    def _admit_one(self, now: float) -> Job | None:
        oldest = sorted(self.queue, key=lambda job: job.order)[:LOOKED_AT]
        shared = {job: self._match(job).n_tokens for job in oldest} if len(oldest) > 1 else {}
        n_tries = _TRIES
        for job in order(oldest, shared, now, self._overdue_s):
            slot = choose_slot(self.slots, job.request.id_slot)
            if slot is None:
                continue
            if self._may_go_on(job) and self._sit_down(job, slot):
                return job
            n_tries -= 1
            if n_tries == 0 or now - job.handle.submitted >= self._overdue_s:
                break  # whoever came later does not take the cells that an overdue job waits for
        return None

    def _may_go_on(self, job: Job) -> bool:
        """A parked job waits until another is through: before that the cells that it lacked are not there."""
        return job.parked_at is None or job.parked_at < self._n_ended or not self.running

    def _sit_down(self, job: Job, slot: Slot) -> bool:
        """Gives the job this slot and what is in memory of its prompt, unless the cells do not suffice."""
        running = self.running
        job.phase, job.id_slot = Phase.PROMPT, slot.id
        job.seq = self._ctx.memory.sequence(slot.id)
        self.attach(job)
        if running and not self._cells.fit([*running, job], find_waits([*running, job])):
            self._let_go(job)
            job.phase = Phase.QUEUED
            return False
        self.queue.remove(job)
        slot.job = job
        return True

    def _match(self, job: Job) -> Match:
        """The longest prefix that the job may share; its last token is always computed, for its logits."""
        return self._tree.match(job.goal[:-1], job.reads)

    def attach(self, job: Job) -> None:
        """Shares the longest prefix in memory, if that is more than the job has."""
        if not job.reads:
            return
        match = self._match(job)
        if match.n_tokens <= job.n_done:
            return
        if job.n_done:
            self._let_go(job)
            job.seq = self._ctx.memory.sequence(job.id_slot)
        assert job.seq is not None
        n_shared = self._tree.attach(match, job.seq)
        if not job.was_parked:
            job.n_cached, job.n_computed = n_shared, 0

    # -- going ----------------------------------------------------------------------------------------------------

    def remember(self, job: Job) -> None:
        """What the job has computed enters the tree."""
        if job.seq is not None and job.writes is not None and job.clean and job.n_done:
            self._tree.insert(job.seq, job.writes)

    def leave(self, job: Job) -> None:
        """The job is through: its slot and its memory are free."""
        if job.phase is Phase.QUEUED:
            self.queue.remove(job)
            return
        self.remember(job)
        self._free(job)
        self._let_go(job)
        self._n_ended += 1

    def park(self, job: Job) -> None:
        """Back into the queue. Its state stays in the tree while there is room, and is computed again if not."""
        self.remember(job)
        self._free(job)
        seq = job.seq
        job.park()
        job.parked_at = self._n_ended
        assert seq is not None
        self._ctx.free_sequence(seq)
        self.queue.append(job)

    def clear(self) -> None:
        """All are gone, whatever state they were in."""
        self.queue.clear()
        for slot in self.slots:
            slot.job = None
            self._ctx.free_sequence(self._ctx.memory.sequence(slot.id))
        self._ctx.kv.recount()

    def _free(self, job: Job) -> None:
        self._n_left += 1
        self.slots[job.id_slot].leave(self._n_left)

    def _let_go(self, job: Job) -> None:
        """Frees what the job holds of memory."""
        if job.seq is not None:
            self._ctx.free_sequence(job.seq)
            job.seq = None
