"""Takes the time of prompts and generations of many sequences at once, as llama-batched-bench does.

Owns the cases, what a case needs of the memory, and how it is run: random tokens, nothing sampled. Knows the engine and
the clock; nothing of how figures are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from llmkit.engine.batch import Segment
from llmkit.errors import UsageError

if TYPE_CHECKING:
    from llmkit.engine.context import Context

N_WARM_UP = 16


@dataclass(frozen=True)
class BatchedCase:
    """`n_pl` sequences: a prompt of `n_pp` tokens, one for all if `shared`, and then `n_tg` tokens of each, a token of
    each at a time, or one sequence after the other if `separate`."""

    n_pp: int
    n_tg: int
    n_pl: int
    shared: bool = False
    separate: bool = False

    @property
    def n_prompt(self) -> int:
        """Prompt tokens that are computed."""
        return self.n_pp if self.shared else self.n_pl * self.n_pp

    @property
    def n_kv(self) -> int:
        """Tokens in the memory at the end: a shared prompt lies there once."""
        return self.n_prompt + self.n_pl * self.n_tg


@dataclass(frozen=True)
class BatchedParameters:
    """The lists whose combinations are measured, prompts outermost and sequences innermost, as there."""

    n_pp: list[int]
    n_tg: list[int]
    n_pl: list[int]
    shared: bool = False
    separate: bool = False

    def __post_init__(self) -> None:
        for option, values in (("-npp", self.n_pp), ("-ntg", self.n_tg), ("-npl", self.n_pl)):
            if not values:
                raise UsageError(f"{option} is missing", "Give as in -npp 128,512 -ntg 32 -npl 1,8.")
            if min(values) < 1:
                raise UsageError(f"{option} holds {min(values)}; at least 1 is expected")

    def cases(self) -> Iterator[BatchedCase]:
        """All combinations."""
        for n_pp, n_tg, n_pl in product(self.n_pp, self.n_tg, self.n_pl):
            yield BatchedCase(n_pp, n_tg, n_pl, self.shared, self.separate)


@dataclass(frozen=True)
class Room:
    """What a case needs and what there is, in tokens."""

    needed: int
    available: int


@dataclass(frozen=True)
class Times:
    """Seconds of the prompts and of the generations; bytes of K and V used at the end, at most, and reserved."""

    t_pp: float
    t_tg: float
    kv_used: int
    kv_peak: int
    kv_total: int


class Interrupted(Exception):
    """The case was left half done because somebody asked for it."""


class BatchedRun:
    """Runs cases on one context, each from an empty memory."""

    def __init__(self, ctx: Context, n_batch: int, interrupted: Callable[[], bool]) -> None:
        self._ctx, self._n_batch, self._interrupted = ctx, n_batch, interrupted
        self._random = np.random.default_rng(0)

    def warm_up(self) -> None:
        """A few tokens, so that all pages and kernels are there."""
        self._decode([self._segment(0, N_WARM_UP, last=False)])
        self._ctx.memory.clear()

    def run(self, case: BatchedCase) -> Times:
        """The case's times. Interrupted when that was asked for, ContextFullError when it does not fit."""
        memory = self._ctx.memory
        memory.clear()
        began = time.perf_counter()
        self._prompts(case)
        t_pp = time.perf_counter() - began
        if case.shared:
            for seq_id in range(1, case.n_pl):
                memory.seq_cp(0, seq_id)
        began = time.perf_counter()
        self._generate(case)
        t_tg = time.perf_counter() - began
        usage = memory.usage()
        return Times(t_pp, t_tg, usage.bytes_used, usage.bytes_peak, usage.bytes_total)

    def room(self, case: BatchedCase) -> Room | None:
        """What the case lacks; None if it fits."""
        available = self._ctx.n_ctx
        return Room(case.n_kv, available) if case.n_kv > available else None

    def _prompts(self, case: BatchedCase) -> None:
        """All prompts one behind the other, in batches."""
        batch, room = list[Segment](), self._n_batch
        for seq_id in range(1 if case.shared else case.n_pl):
            left = case.n_pp
            while left:
                n = min(left, room)
                left, room = left - n, room - n
                batch.append(self._segment(seq_id, n, last=left == 0))
                if room == 0:
                    self._decode(batch)
                    batch, room = [], self._n_batch
        if batch:
            self._decode(batch)

    def _generate(self, case: BatchedCase) -> None:
        everyone = range(case.n_pl)
        rounds = [[i] for i in everyone for _ in range(case.n_tg)] if case.separate else [everyone] * case.n_tg
        for seq_ids in rounds:
            self._decode([self._segment(seq_id, 1, last=True) for seq_id in seq_ids])

    def _segment(self, seq_id: int, n: int, *, last: bool) -> Segment:
        tokens = self._random.integers(0, self._ctx.model.config.n_vocab, n).tolist()
        return Segment(self._ctx.memory.sequence(seq_id), tokens, "last" if last else "none")

    def _decode(self, batch: list[Segment]) -> None:
        if self._interrupted():
            raise Interrupted
        self._ctx.decode(batch)
