"""What the engine does in one step: who gets a slot, whose tokens are computed, and what comes of them.

Each step gives every generating job its token, and fills the batch with chunks of prompts. Owns the queue and the
slots. Knows nothing of threads: whoever calls `step` is the one who decodes. docs/scheduling.md explains the rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.engine.context_shift import require_shift, shift_context
from llmkit.engine.generation.generate import StopReason
from llmkit.engine.scheduling.chunks import POINT_TOKENS, ChunkSize, cut_at, equal_parts
from llmkit.engine.scheduling.counters import Counters
from llmkit.engine.scheduling.job import Job, Phase
from llmkit.engine.scheduling.requests import EngineParams, Event, Failed, OnEvent, Started, TokenEvent
from llmkit.engine.scheduling.seats import Seats
from llmkit.engine.scheduling.sharing import Wait, find_waits
from llmkit.engine.scheduling.slot import Slot
from llmkit.errors import ContextFullError, LlmkitError, NumericsError, RequestTimeoutError, UnsupportedError
from llmkit.memory.prefix_tree import PrefixTree

Rows = NDArray[np.float32]


class Scheduler:
    """Jobs of a context. `events` collects what is to be told; whoever calls `step` takes them away."""

    def __init__(
        self, ctx: Context, tree: PrefixTree, params: EngineParams, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.ctx, self.tree, self.params, self.clock = ctx, tree, params, clock
        self.n_ctx = min(params.n_ctx_slot or ctx.n_ctx, ctx.n_ctx)
        if params.context_shift:
            require_shift(ctx.memory, "a context shift")
            if ctx.kv.has_window:
                message = "a context shift lets tokens see what the sliding window's memory has dropped"
                raise UnsupportedError(message, "with --swa-full it keeps all tokens")
        self.seats = Seats(ctx, tree, params, self.n_ctx)
        self.events: list[tuple[OnEvent, Event]] = []
        self.counters = Counters()
        self._chunk = ChunkSize(params.max_chunk, params.max_chunk_s)
        self._awaited: dict[Job, int] = {}  # jobs that others wait for in this step, and up to which token at first

    @property
    def jobs(self) -> list[Job]:
        """All that are not through."""
        return self.seats.jobs

    @property
    def queue(self) -> list[Job]:
        """Those without a slot."""
        return self.seats.queue

    @property
    def slots(self) -> list[Slot]:
        return self.seats.slots

    def submit(self, job: Job) -> None:
        """Puts a new job into the queue."""
        self.seats.queue.append(job)

    # -- a step ---------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Does what can be done at once; False when there is nothing to compute."""
        self.end_unwanted()
        self._admit()
        plan = self._plan()
        rows = self._decode(plan)
        if plan:
            self._land(plan, rows)
        self.counters.n_processing, self.counters.n_waiting = len(self.seats.running), len(self.queue)
        return bool(plan)

    def end_unwanted(self) -> None:
        """Ends what was cancelled, and what is out of time."""
        now = self.clock()
        for job in self.jobs:
            deadline = job.request.deadline_s
            if job.handle.cancelled:
                self.counters.n_cancelled += 1
                self._finish(job, StopReason.INTERRUPTED)
            elif deadline is not None and now - job.handle.submitted >= deadline:
                message = f"the request was not through after {deadline:g} seconds"
                self._fail(job, RequestTimeoutError(message, "Allow more time (--timeout), or ask for fewer tokens."))

    def _admit(self) -> None:
        """Gives free slots to waiting jobs."""
        now = self.clock()
        for job in self.seats.admit(now):
            if job.started_at is None:
                job.started_at = job.last_token_at = now
                self.counters.queue_s.observe(now - job.handle.submitted)
                self._tell(job, Started(job.index, job.id_slot, job.prompt.size))

    # -- the batch ------------------------------------------------------------------------------------------------

    def _plan(self) -> dict[Job, int]:
        """How many tokens of which job: one of each that generates, and a share of the chunk for each prompt."""
        running = self.seats.running
        waits = self._waits(running)
        self._awaited = {wait.leader: wait.n for wait in sorted(waits, key=lambda wait: -wait.n)}
        prompts = [job for job in running if job.phase is Phase.PROMPT]
        stops = {job: self._stops(job, waits) for job in prompts}
        wanted = [cut_at(job.n_done, job.n_left, stops[job]) for job in prompts]
        plan = {job: 1 for job in running if job.phase is Phase.GENERATING}
        parts = equal_parts(wanted, self._chunk.choose(sum(wanted), bool(plan)))
        plan |= {job: n for job, n in zip(prompts, parts, strict=True) if n}
        return plan

    def _waits(self, running: list[Job]) -> list[Wait]:
        """Who waits for whose prompt. Those whose wait is over take what there is of it now."""
        waits = find_waits(running)
        waiting = {wait.job for wait in waits}
        over = [job for job in running if job.phase is Phase.WAITING and job not in waiting]
        for job in waiting:
            job.phase = Phase.WAITING
        for job in over:
            job.phase = Phase.PROMPT
            self.seats.attach(job)
        return self._waits(running) if over else waits

    def _stops(self, job: Job, waits: list[Wait]) -> list[int]:
        """Where chunks of this prompt must end: with a window, a state can be gone on from where it was recorded."""
        if not self.ctx.kv.has_window or job.writes is None:
            return []
        every = range(POINT_TOKENS, job.goal.size, POINT_TOKENS)
        return [*job.request.points, *every, *(wait.n for wait in waits if wait.leader is job)]

    def _decode(self, plan: dict[Job, int]) -> Rows:
        """Computes the plan; jobs for which there are no cells, or no numbers, are taken out of it."""
        while True:
            self._make_room(plan)
            segments = [
                Segment(job.seq, job.next_tokens(n), "last" if n == job.n_left and not job.only_caches else "none")
                for job, n in plan.items()
            ]
            if not segments:
                return np.empty((0, 0), np.float32)
            began = self.clock()
            try:
                rows = self.ctx.decode(segments)
            except NumericsError as error:
                self._fail_numerics(plan, error)
            except ContextFullError as error:
                if not self._give_way(plan):
                    self._give_up(plan, error)
            else:
                self._count_step(plan, self.clock() - began)
                return rows

    def _count_step(self, plan: dict[Job, int], seconds: float) -> None:
        counters, n_prompt = self.counters, sum(n for job, n in plan.items() if job.phase is Phase.PROMPT)
        counters.n_decode += 1
        counters.busy_slots += len(plan)
        counters.step_s += seconds
        counters.n_prompt += n_prompt
        self._chunk.measured(n_prompt, seconds)

    def _fail_numerics(self, plan: dict[Job, int], error: NumericsError) -> None:
        """Fails the jobs whose logits are no numbers; the others are decoded again, as nothing has changed for them."""
        bad = [job for job in plan if job.seq in error.sequences] or list(plan)
        for job in bad:
            del plan[job]
            job.clean = False  # whatever overflows may be in its memory already
            self._fail(job, error)

    # -- cells ----------------------------------------------------------------------------------------------------

    def _make_room(self, plan: dict[Job, int]) -> None:
        """Sees to it that there are cells: texts that are full shift, cached prefixes go, then the youngest job."""
        if self.params.context_shift:
            for job in [job for job in plan if job.phase is Phase.GENERATING and job.n_done >= self.n_ctx]:
                self._shift(job)
        while plan and not self.tree.make_room(needed := self._blocks_needed(plan)):
            if self._give_way(plan):
                continue
            self.tree.make_room(needed, in_use=True)  # what nobody else shares any more need not be copied either
            if not self.tree.make_room(self._blocks_needed(plan)):
                message = "the cells that it needs are kept for pinned prefixes"
                self._give_up(plan, ContextFullError(message, "Unpin some."))

    def _blocks_needed(self, plan: dict[Job, int]) -> list[int]:
        """Free blocks of each kind that the plan takes. A text that was shifted gets copies of what it shares."""
        kv, sequences = self.ctx.kv, {job.seq: n for job, n in plan.items() if job.seq is not None}
        needed = kv.blocks_needed(sequences)
        for seq in sequences:
            if not seq.chain.turned:
                for k, pool in enumerate(kv.pools):
                    needed[k] += int((pool.n_refs_of(seq.chain.blocks(k)) > 1).sum())
        return needed

    def _give_way(self, plan: dict[Job, int]) -> bool:
        """Parks the youngest running job that holds cells; False when there is no other than the oldest."""
        holders = sorted((job for job in self.seats.running if job.n_done or job in plan), key=lambda job: job.order)
        if len(holders) < 2:
            return False
        plan.pop(holders[-1], None)
        self.counters.n_parked += 1
        self.seats.park(holders[-1])
        return True

    def _give_up(self, plan: dict[Job, int], error: ContextFullError) -> None:
        """Ends the jobs that are left, though they are alone: a text as if its context were full."""
        for job in plan:
            if job.phase is Phase.GENERATING:
                self._finish(job, StopReason.CONTEXT)
            else:
                self._fail(job, error)
        plan.clear()

    def _shift(self, job: Job) -> None:
        """Forgets the older half of what follows the tokens to keep: lossy, so the tree takes in no more of it."""
        request, memory = job.request, self.ctx.memory
        n_keep = job.prompt.size if request.n_keep < 0 else request.n_keep
        n_keep = min(n_keep, self.n_ctx - 4)
        n_discard = request.n_discard or (job.n_done - n_keep) // 2
        shift_context(memory, job.id_slot, n_keep, max(1, min(n_discard, job.n_done - n_keep)))
        job.truncated = True

    # -- what comes of it -----------------------------------------------------------------------------------------

    def _land(self, plan: dict[Job, int], rows: Rows) -> None:
        """Tokens are chosen, points recorded, and jobs that are through leave."""
        next_row = iter(rows)
        for job, n in plan.items():
            at = self.clock()
            in_prompt = job.phase is Phase.PROMPT
            chooses = not job.only_caches and (not in_prompt or job.n_done == job.goal.size)
            self.counters.n_past_max = max(self.counters.n_past_max, job.n_done)
            if in_prompt:
                self._note_chunk(job, n, at)
            elif self.ctx.kv.has_window and job.n_done % POINT_TOKENS == 0:
                self.seats.remember(job)
            if chooses:
                self._choose(job, next(next_row))
            elif job.only_caches and job.n_done == job.goal.size:
                self._finish(job, StopReason.LIMIT)

    def _note_chunk(self, job: Job, n: int, at: float) -> None:
        """A chunk of a prompt is computed."""
        if not job.was_parked:
            job.n_computed += n
            job.last_token_at = at
            self._tell(job, job.progress(at))
        n_done, is_point = job.n_done, False
        if self.ctx.kv.has_window:
            is_point = n_done in job.request.points or n_done % POINT_TOKENS == 0
        if is_point or self._awaited.get(job, job.goal.size) <= n_done:
            self.seats.remember(job)
        if n_done == job.goal.size and not job.was_parked:
            self._count_prompt(job)

    def _count_prompt(self, job: Job) -> None:
        counters = self.counters
        counters.prompt_s += job.timings().prompt_s
        counters.n_cached += job.n_cached
        counters.tokens_hit += job.n_cached
        counters.tokens_asked += job.prompt.size
        counters.hits += job.n_cached > 0
        counters.misses += job.n_cached == 0

    def _choose(self, job: Job, logits: Rows) -> None:
        """Chooses a job's token and tells it; a job whose logits leave no choice fails."""
        is_first, before = job.first_token_at is None, job.last_token_at
        try:
            token = job.choose(logits, self.clock)
        except LlmkitError as error:
            self._fail(job, error)
            return
        job.last_token_at = self.clock()
        timings = job.timings()
        self.counters.n_predicted += 1
        if is_first:
            self.counters.first_token_s.observe(job.last_token_at - job.handle.submitted)
        else:
            self.counters.predicted_s += job.last_token_at - before
            self.counters.between_tokens_s.observe(job.last_token_at - before)
        self._tell(job, TokenEvent(job.index, token.id, token.text, token.logprobs, timings))
        if job.generation.stop_reason is not None:
            self._finish(job, job.generation.stop_reason)

    def _finish(self, job: Job, reason: StopReason) -> None:
        job.generation.stop_reason = reason
        self.counters.n_finished += reason is not StopReason.INTERRUPTED  # that is a cancelled one
        self._tell(job, job.finished())
        self._end(job)

    def _fail(self, job: Job, error: LlmkitError) -> None:
        self.counters.n_failed += 1
        self._tell(job, Failed(job.index, error))
        self._end(job)

    def _end(self, job: Job) -> None:
        """The job is through and holds nothing any more."""
        self.seats.leave(job)
        if job.private and not any(other.handle is job.handle for other in self.jobs):
            self.tree.clear(job.private)

    def fail_all(self, error: LlmkitError) -> None:
        """Ends all jobs, whatever state they are in: for a caller who met an error that nobody foresaw."""
        for job in self.jobs:
            self._tell(job, Failed(job.index, error))
        self.counters.n_failed += len(self.jobs)
        self.seats.clear()

    def _tell(self, job: Job, event: Event) -> None:
        self.events.append((job.handle.on_event, event))
