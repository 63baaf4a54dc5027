"""A job: one continuation of a request's prompt on its way through the engine.

Owns how far it is and what it tells the client. Knows nothing of other jobs or of how a step is put together.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.generation.generate import GeneratedToken, Generation, StopReason
from llmkit.engine.generation.line_limits import LineLimits
from llmkit.engine.scheduling.requests import PUBLIC, Event, Finished, Progress, RequestHandle, RequestTimings

if TYPE_CHECKING:
    from llmkit.memory.sequence import Sequence

Tokens = NDArray[np.int32]


class Phase(Enum):
    """QUEUED: has no slot (new, or parked). WAITING: has one, and another job computes the prefix that it shares."""

    QUEUED = auto()
    WAITING = auto()
    PROMPT = auto()
    GENERATING = auto()


class Job:
    """Its `goal` is to have all these tokens in memory, for the next is chosen from the last one's logits: the prompt,
    or after being parked, all that there was. Then it generates, and each token is computed with the next step.

    reads, writes: namespaces whose prefixes it may share, and where its own go (None: nowhere). private: a namespace of
    the request alone, in which continuations of a prompt that is not cached share it. seq: what its memory
    holds, None without a slot. n_cached: tokens of the goal that were found; n_computed: those computed for it.
    clean: nothing in seq is known to have overflowed.
    """

    def __init__(
        self,
        handle: RequestHandle,
        index: int,
        generation: Generation,
        cached: bool = True,
        private: str | None = None,
    ) -> None:
        request = handle.request
        self.handle, self.index, self.request, self.generation = handle, index, request, generation
        generation.seq = self
        self.prompt: Tokens = np.asarray(request.prompt_ids, np.int32)
        self.goal = self.prompt
        self.private = private
        if cached:
            self.writes: str | None = request.namespace
            self.reads: tuple[str, ...] = tuple(dict.fromkeys((request.namespace, PUBLIC)))
        else:
            self.writes, self.reads = private, (private,) if private else ()
        self.phase = Phase.QUEUED
        self.id_slot = -1
        self.seq: Sequence | None = None
        self.n_cached = self.n_computed = 0
        self.clean, self.truncated = True, False
        self.was_parked = False
        self.parked_at: int | None = None  # see seats
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at = 0.0
        self.limits = LineLimits(request.t_max_predict_s, request.n_indent)
        self.common: dict[tuple[int, int], int] = {}  # see sharing

    # -- how far it is --------------------------------------------------------------------------------------------

    @property
    def order(self) -> tuple[int, int]:
        """Who came first."""
        return self.handle.id, self.index

    @property
    def n_done(self) -> int:
        """Tokens in memory. Other threads ask, too."""
        seq = self.seq
        return 0 if seq is None else seq.n_tokens

    @property
    def n_tokens(self) -> int:
        """The same, as its generation asks for it."""
        return self.n_done

    @property
    def n_left(self) -> int:
        """Tokens that are to be computed before one can be chosen."""
        return 1 if self.phase is Phase.GENERATING else self.goal.size - self.n_done

    @property
    def n_remain(self) -> int:
        """Tokens that may still be generated, -1 for any number."""
        n_predict = self.request.params.n_predict
        return -1 if n_predict < 0 else n_predict - len(self.generation.ids)

    @property
    def only_caches(self) -> bool:
        """Whether no token is asked for."""
        return self.request.params.n_predict == 0

    def next_tokens(self, n: int) -> list[int]:
        """The next n tokens to compute."""
        if self.phase is Phase.GENERATING:
            return self.generation.ids[-1:]
        tokens: list[int] = self.goal[self.n_done : self.n_done + n].tolist()
        return tokens

    # -- what happens to it ---------------------------------------------------------------------------------------

    def choose(self, logits: NDArray[np.float32], now: Callable[[], float]) -> GeneratedToken:
        """Chooses the next token; `generation.stop_reason` says whether it was the last."""
        generation = self.generation
        token = generation.choose(logits)
        at = now()
        if self.first_token_at is None:
            self.first_token_at = at
        if self.limits.reached(token.text, at - self.first_token_at) and generation.stop_reason is None:
            generation.stop_reason = StopReason.LIMIT
        self.phase = Phase.GENERATING
        return token

    def park(self) -> None:
        """Gives up its slot; all that it had is to be computed again before it goes on."""
        if self.phase is Phase.GENERATING:
            assert self.seq is not None
            self.goal = np.append(self.seq.tokens, np.int32(self.generation.ids[-1])).astype(np.int32)
            self.was_parked = True
        elif not self.was_parked:
            self.n_cached = self.n_computed = 0
        self.common.clear()
        self.phase, self.seq = Phase.QUEUED, None

    # -- what it tells --------------------------------------------------------------------------------------------

    def timings(self) -> RequestTimings:
        """As far as it is."""
        submitted, started, first = self.handle.submitted, self.started_at, self.first_token_at
        if started is None:
            return RequestTimings()
        return RequestTimings(
            self.n_cached,
            self.n_computed,
            max(0.0, (self.last_token_at if first is None else first) - started),
            len(self.generation.ids),
            0.0 if first is None else self.last_token_at - first,
            started - submitted,
            None if first is None else first - submitted,
        )

    def progress(self, at: float) -> Progress:
        """How much of the prompt there is."""
        started = at if self.started_at is None else self.started_at
        return Progress(self.index, self.prompt.size, self.n_cached, self.n_done, at - started)

    def finished(self) -> Event:
        """The event at its end."""
        generation = self.generation
        generation.finish()
        assert generation.stop_reason is not None
        return Finished(
            self.index, self.id_slot, generation.stop_reason, generation.stopping_word, generation.tail,
            tuple(generation.ids), self.timings(), self.truncated, self.n_done, generation.sampler.seed,
        )  # fmt: skip
