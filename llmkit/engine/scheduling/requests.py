"""What is said between a server and the engine's thread: requests, events, handles, what a slot is doing.

Records only, all frozen but the handle; no engine is needed to make one. Knows nothing of HTTP, of models or of how a
step is put together. Counts are tokens, times are seconds on the clock of `time.perf_counter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from llmkit.engine.scheduling.counters import Counters
from llmkit.errors import LlmkitError, UsageError
from llmkit.params import GenerateParams, SamplingParams, check_range

if TYPE_CHECKING:
    from llmkit.engine.generation.generate import StopReason
    from llmkit.engine.generation.logprobs import Logprobs
    from llmkit.engine.generation.sampler import TextGrammar

PUBLIC = "public"
"""The namespace that every request may read. What is put there is found by all; requests of keys name another."""


@dataclass(frozen=True)
class CompletionRequest:
    """One prompt, and `n_cmpl` continuations of it.

    params: n_predict and n_logprobs count; n_batch is the scheduler's to choose. n_predict 0 fills the cache alone.
    stops: strings that end the text, and are not part of it; stop_ids: tokens that stand for one and have no text.
    namespace: where the prompt is looked for and where it and the answer enter, besides PUBLIC, which is only read.
    cache_prompt: False neither reads nor writes what is shared. points: numbers of tokens at which a message begins,
    where a model with a window can later be gone on from.
    id_slot: the slot to wait for; -1 takes any. n_cmpl: continuation i draws with seed + i.
    grammar: a Grammar, or None; each continuation gets a clone. t_max_predict_s: as in llama.cpp, the text ends so long
    after its first token, at a line's end at the earliest; n_indent: and when a line is indented less than that.
    deadline_s: from being handed in; what is not through by then fails with RequestTimeoutError.
    n_keep, n_discard: what a context shift keeps at the front and forgets behind it (0: half of the rest).
    """

    prompt_ids: Sequence[int]
    params: GenerateParams = field(default_factory=GenerateParams)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stops: tuple[str, ...] = ()
    stop_ids: dict[int, str] = field(default_factory=dict)
    namespace: str = PUBLIC
    cache_prompt: bool = True
    points: tuple[int, ...] = ()
    id_slot: int = -1
    n_cmpl: int = 1
    grammar: TextGrammar | None = None
    t_max_predict_s: float | None = None
    n_indent: int = 0
    deadline_s: float | None = None
    n_keep: int = 0
    n_discard: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise UsageError("the prompt holds no token, so there is nothing to continue")
        check_range("n_cmpl", self.n_cmpl, 1, None, "so many continuations are computed")
        check_range("id_slot", self.id_slot, -1, None, "-1 takes any slot")


@dataclass(frozen=True)
class RequestTimings:
    """One continuation's, as far as it is: llmkit's counts under llama.cpp's names.

    cache_n: prompt tokens that were found computed; prompt_n: those computed for this continuation, in prompt_s, which
    runs from its first step to its first token. predicted_n: tokens chosen, in predicted_s, which runs from the first
    token on. queue_s: from being handed in to its first step. first_token_s: from being handed in to its first token.
    """

    cache_n: int = 0
    prompt_n: int = 0
    prompt_s: float = 0.0
    predicted_n: int = 0
    predicted_s: float = 0.0
    queue_s: float = 0.0
    first_token_s: float | None = None


@dataclass(frozen=True)
class Started:
    """A continuation got a slot: the first event of each."""

    index: int
    id_slot: int
    n_prompt: int


@dataclass(frozen=True)
class Progress:
    """Part of the prompt was computed: n_done of n_total tokens are there, n_cached of them were found computed.

    The last one says n_done == n_total and comes before the first token. elapsed_s: since the continuation started.
    """

    index: int
    n_total: int
    n_cached: int
    n_done: int
    elapsed_s: float


@dataclass(frozen=True)
class TokenEvent:
    """A token was chosen; `text` is what can be shown now (nothing while a stop string or a character may go on).

    Joined, the texts of all tokens and Finished.tail are the answer. The token that ends a text has none.
    """

    index: int
    id: int
    text: str
    logprobs: Logprobs | None
    timings: RequestTimings


@dataclass(frozen=True)
class Finished:
    """The last event of a continuation that came to its end (or was cancelled: StopReason.INTERRUPTED).

    stop_reason: llama.cpp's stop_type is "limit" for LIMIT and CONTEXT. ids: all that were chosen, the ending one too.
    tail: text that no further token completed. truncated: the context was shifted. n_past: tokens that its memory held.
    """

    index: int
    id_slot: int
    stop_reason: StopReason
    stopping_word: str | None
    tail: str
    ids: tuple[int, ...]
    timings: RequestTimings
    truncated: bool
    n_past: int
    seed: int


@dataclass(frozen=True)
class Failed:
    """The last event of a continuation that could not go on: NumericsError, RequestTimeoutError, ContextFullError."""

    index: int
    error: LlmkitError


Event = Started | Progress | TokenEvent | Finished | Failed
OnEvent = Callable[[Event], None]


@dataclass(eq=False)
class RequestHandle:
    """A request that was handed in: what to cancel it by. Every index in range(n_cmpl) ends in Finished or Failed."""

    id: int
    request: CompletionRequest
    on_event: OnEvent
    submitted: float
    cancelled: bool = False


class SlotState(StrEnum):
    """What a slot is doing. waiting: another request is computing the prefix that it shares."""

    IDLE = "idle"
    WAITING = "waiting"
    PROMPT = "prompt"
    GENERATING = "generating"


@dataclass(frozen=True)
class SlotInfo:
    """A slot at one moment. Of an idle one: what it did last, if anything (id_task -1: nothing yet).

    n_prompt: tokens of the prompt, n_cached of them found, n_computed computed here. n_remain: tokens that may still
    come, -1 for any number. prompt_ids and ids are for a debug view and for saving a slot.
    """

    id: int
    n_ctx: int
    state: SlotState
    id_task: int = -1
    request: CompletionRequest | None = None
    n_prompt: int = 0
    n_cached: int = 0
    n_computed: int = 0
    n_decoded: int = 0
    n_remain: int = -1
    has_new_line: bool = False
    n_past: int = 0
    prompt_ids: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()

    @property
    def is_processing(self) -> bool:
        return self.state is not SlotState.IDLE


@dataclass(frozen=True)
class EngineParams:
    """How the engine's thread shares itself out.

    n_slots: texts computed at once. n_ctx_slot: tokens that one may have, 0 for the whole context. n_queue: requests
    that may wait besides; 0 refuses what cannot start at once. max_chunk, max_chunk_s: prompt tokens in one step at
    most. overdue_s: a request that has waited so long goes first. cache_prompt: False shares nothing. tree_bytes: what
    cached prefixes may take, 0 for all that is free. context_shift: a text that fills its context forgets its beginning
    (lossy) instead of ending.
    """

    n_slots: int = 4
    n_ctx_slot: int = 0
    n_queue: int = 512
    max_chunk: int = 256
    max_chunk_s: float = 0.25
    overdue_s: float = 5.0
    cache_prompt: bool = True
    tree_bytes: int = 0
    context_shift: bool = False

    def __post_init__(self) -> None:
        check_range("n_slots", self.n_slots, 1, 1024, "so many texts are computed at once (-np)")
        check_range("n_ctx_slot", self.n_ctx_slot, 0, None, "0 gives each slot the whole context")
        check_range("n_queue", self.n_queue, 0, None, "so many requests may wait for a slot")
        check_range("max_chunk", self.max_chunk, 1, None, "so many prompt tokens go into one step")
        check_range("max_chunk_s", self.max_chunk_s, 0.0, None, "a step's prompt tokens may take so long")


class Engine(Protocol):
    """What a server needs of the engine's thread; all may be called from any thread, and none waits for a step.

    llmkit.engine.scheduling.engine_thread.EngineThread is the real one:

        engine = EngineThread(ctx, tokenizer, EngineParams(n_slots=10), hand_over=loop.call_soon_threadsafe)
        with engine:
            handle = engine.submit(CompletionRequest(ids), on_event)

    hand_over is called once a step with a function of no arguments, which calls on_event for each event of that step in
    order: wherever hand_over has it run (an event loop), there on_event runs. Without one it runs in the engine's
    thread. on_event must not raise nor wait.
    """

    def submit(self, request: CompletionRequest, on_event: OnEvent) -> RequestHandle:
        """QueueFullError, PromptTooLongError, UsageError (a bad id or slot), DrainingError; else it will be done."""
        ...

    def cancel(self, handle: RequestHandle) -> None:
        """Ends a request within a step: Finished(INTERRUPTED) follows for each continuation that is not through."""
        ...

    def slots(self) -> list[SlotInfo]: ...

    def counters(self) -> Counters: ...

    def call(self, function: Callable[[Any, Any], Any]) -> Future[Any]:
        """Runs function(ctx, tree) in the engine's thread between two steps, and while it is idle."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Takes in nothing more and waits for what is there; after the timeout the rest is cancelled (False)."""
        ...

    def close(self) -> None: ...
