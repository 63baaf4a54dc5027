"""Many prompts, one after another, several at once in one continuous batch; a common beginning is computed once.

Owns who sits in which sequence, what each step computes, and that no prompt's failure is another's. Where prompts come
from and where texts go is the caller's; what happens to a single text is generate.py's. A text has the bits that its
prompt would have alone: neither the company in a batch nor whose memory a prompt lies in changes a logit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.batch import Segment, Wanted
from llmkit.engine.common_prefix import n_common
from llmkit.engine.context import Context
from llmkit.engine.generation.generate import GeneratedToken, Generation, StopReason, never
from llmkit.engine.generation.timings import Timings
from llmkit.errors import ContextFullError, LlmkitError, NumericsError, RewindError

Make = Callable[[int], Generation]
"""Makes the generation of a prompt in the empty sequence of this id; what it raises is this prompt's end."""

_MAX_REBUILD = 16  # tokens by which a common beginning is cut rather than left unused


class Prompts(Protocol):
    """Where prompts come from."""

    def take(self, *, wait: bool) -> Make | LlmkitError | None:
        """The next one, or why it is none; None if there is no more, or without `wait` none yet."""

    @property
    def ended(self) -> bool:
        """Whether there is no more."""


@dataclass(frozen=True)
class Answer:
    """Something new of prompt number 0, 1 ...: a token of its text, or its end. `n_shared` tokens of the prompt were
    not computed for it.

    At the end `token` is None, and `generation` has the stop reason and the tail, or `error` says what failed.
    """

    number: int
    generation: Generation | None = None
    token: GeneratedToken | None = None
    error: LlmkitError | None = None
    n_shared: int = 0


@dataclass
class _Seat:
    """A sequence at work: its prompt is computed up to `n_done`, then its tokens come."""

    number: int
    seq_id: int
    generation: Generation
    n_shared: int
    n_done: int

    def rest(self, n_rows: int) -> tuple[list[int], Wanted]:
        """What to compute next, n_rows tokens of the prompt at most, and whether logits are wanted."""
        ids, prompt = self.generation.ids, self.generation.prompt_ids
        if ids:
            return ids[-1:], "last"
        tokens = list(prompt[self.n_done : self.n_done + n_rows])
        whole = self.n_done + len(tokens) == len(prompt) and self.generation.params.n_predict != 0
        return tokens, "last" if whole else "none"


@dataclass
class LineBatch:
    """Iterate it once for the answers, which come as they are ready; those of one prompt are in order.

    n_parallel: prompts at once, in sequences 0, 1 ... of the context, which are empty. n_rows: tokens that a step
    computes at most. n_ahead: how far the numbers at work may be apart, so that what waits for a long text is bounded.
    prefix_id, prefix_ids: the sequence that holds the common beginning, and its tokens. An empty one is filled when the
    first prompt comes; one that holds tokens already (restored ones, say) is used as it is.
    """

    ctx: Context
    prompts: Prompts
    n_parallel: int
    n_rows: int
    n_ahead: int
    prefix_id: int
    prefix_ids: Sequence[int] = ()
    interrupted: Callable[[], bool] = never
    timings: Timings = field(default_factory=Timings)
    n_taken: int = field(default=0, init=False)
    _seats: list[_Seat] = field(default_factory=list, init=False)
    _prefix: list[int] | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Answer]:
        while True:
            if self.interrupted():
                yield from self._stop_all()
                return
            yield from self._admit()
            if self._seats:
                yield from self._step()
            elif self.prompts.ended:
                return

    # -- prompts --------------------------------------------------------------------------------------------------

    def _admit(self) -> Iterator[Answer]:
        """Seats prompts while there are seats; waits for one only where nothing else is to be done."""
        while len(self._seats) < self.n_parallel and not self.interrupted():
            if self._seats and self.n_taken - self._seats[0].number >= self.n_ahead:
                return
            prompt = self.prompts.take(wait=not self._seats)
            if prompt is None:
                return
            number = self.n_taken
            self.n_taken += 1
            error = prompt if isinstance(prompt, LlmkitError) else self._seat(number, prompt)
            if error is not None:
                yield Answer(number, error=error)

    def _seat(self, number: int, make: Make) -> LlmkitError | None:
        seq_id = next(i for i in range(self.n_parallel) if i not in {seat.seq_id for seat in self._seats})
        try:
            generation = make(seq_id)
            n_shared = self._share(seq_id, generation.prompt_ids)
            generation.sampler.accept(generation.prompt_ids)
        except LlmkitError as error:
            self.ctx.memory.seq_rm(seq_id)
            return error
        self._seats.append(_Seat(number, seq_id, generation, n_shared, n_shared))
        return None

    def _share(self, seq_id: int, prompt_ids: Sequence[int]) -> int:
        """Lets a sequence share the common beginning; how many tokens of it. The last one of a prompt is never shared:
        its logits are wanted.
        """
        if self._prefix is None:
            self._prefix = self.ctx.memory.sequence(self.prefix_id).tokens.tolist()
            if not self._prefix:
                self._fill_prefix(n_common(self.prefix_ids, prompt_ids))
        n = min(n_common(self._prefix, prompt_ids), len(prompt_ids) - 1)
        if n == 0:
            return 0
        try:
            self.ctx.memory.seq_cp(self.prefix_id, seq_id, 0, n)
        except RewindError:
            # A window has dropped what a shorter beginning needs.
            if n < len(self._prefix) - _MAX_REBUILD:
                return 0
            self._fill_prefix(n)
            self.ctx.memory.seq_cp(self.prefix_id, seq_id, 0, n)
        return n

    def _fill_prefix(self, n: int) -> None:
        """Computes the first n tokens of the common beginning."""
        tokens = list(self.prefix_ids or self._prefix or ())[:n]
        self.ctx.memory.seq_rm(self.prefix_id)
        self._prefix = []
        seq, began = self.ctx.memory.sequence(self.prefix_id), time.perf_counter()
        for start in range(0, n, self.n_rows):
            self.ctx.decode([Segment(seq, tokens[start : start + self.n_rows], "none")])
        self._prefix = tokens
        self.timings.prompt_n += n
        self.timings.prompt_s += time.perf_counter() - began

    # -- a step ---------------------------------------------------------------------------------------------------

    def _step(self) -> Iterator[Answer]:
        """Gives each text its token, and the oldest prompts what room is left; then chooses from the logits."""
        room = max(1, self.n_rows - sum(bool(seat.generation.ids) for seat in self._seats))
        planned: list[tuple[_Seat, list[int], Wanted]] = []
        for seat in self._seats:
            n_rows = 1 if seat.generation.ids else room
            if n_rows > 0:
                planned.append((seat, *seat.rest(n_rows)))
                room -= 0 if seat.generation.ids else len(planned[-1][1])
        failed = dict[int, LlmkitError]()
        rows = self._decode(planned, failed)
        for seat, tokens, wanted in planned:
            if seat.number in failed:
                yield self._leave(seat, failed[seat.number])
                continue
            if not seat.generation.ids:
                seat.n_done += len(tokens)
            if wanted == "last":
                yield from self._choose(seat, rows[seat.number])
            elif seat.n_done == len(seat.generation.prompt_ids):
                seat.generation.stop_reason = StopReason.LIMIT
                yield self._leave(seat)

    def _choose(self, seat: _Seat, logits: NDArray[np.float32]) -> Iterator[Answer]:
        try:
            token = seat.generation.choose(logits)
        except LlmkitError as error:
            yield self._leave(seat, error)
            return
        yield Answer(seat.number, seat.generation, token, n_shared=seat.n_shared)
        if seat.generation.stop_reason is not None:
            yield self._leave(seat)

    def _decode(
        self, planned: list[tuple[_Seat, list[int], Wanted]], failed: dict[int, LlmkitError]
    ) -> dict[int, NDArray[np.float32]]:
        """The logits by number; whoever makes the batch fail is found by computing each alone."""
        began = time.perf_counter()
        try:
            found = self._logits(planned)
        except (NumericsError, ContextFullError):
            found = {}
            for one in planned:
                try:
                    # Copied, because each call of decode overwrites the logits of the one before.
                    found |= {number: logits.copy() for number, logits in self._logits([one]).items()}
                except (NumericsError, ContextFullError) as error:
                    failed[one[0].number] = error
        self._count(planned, time.perf_counter() - began)
        return found

    def _logits(self, planned: list[tuple[_Seat, list[int], Wanted]]) -> dict[int, NDArray[np.float32]]:
        segments = [Segment(seat.generation.seq, tokens, wanted) for seat, tokens, wanted in planned]
        rows = iter(self.ctx.decode(segments))
        return {seat.number: next(rows) for seat, _, wanted in planned if wanted == "last"}

    def _count(self, planned: list[tuple[_Seat, list[int], Wanted]], seconds: float) -> None:
        """A step that computes prompts and texts is divided by its tokens."""
        n_all = sum(len(tokens) for _, tokens, _ in planned)
        n_prompt = sum(len(tokens) for seat, tokens, _ in planned if not seat.generation.ids)
        self.timings.prompt_n += n_prompt
        self.timings.prompt_s += seconds * n_prompt / n_all
        self.timings.decode_s += seconds * (n_all - n_prompt) / n_all

    # -- ends -----------------------------------------------------------------------------------------------------

    def _leave(self, seat: _Seat, error: LlmkitError | None = None) -> Answer:
        """Frees a seat; a text that others' memory left no room for is simply over."""
        generation = seat.generation
        if isinstance(error, ContextFullError) and generation.ids:
            generation.stop_reason, error = StopReason.CONTEXT, None
        generation.finish()
        self._seats.remove(seat)
        self.ctx.memory.seq_rm(seat.seq_id)
        return Answer(seat.number, generation, error=error, n_shared=seat.n_shared)

    def _stop_all(self) -> Iterator[Answer]:
        for seat in list(self._seats):
            seat.generation.stop_reason = StopReason.INTERRUPTED
            yield self._leave(seat)
