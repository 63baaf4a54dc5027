"""An engine for tests of the routes: it answers from a script, in a thread, as requests.Engine promises."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from llmkit.engine.generation.generate import StopReason
from llmkit.engine.generation.logprobs import Logprobs, TokenLogprob
from llmkit.engine.generation.stop_strings import StopStrings
from llmkit.engine.scheduling.counters import Counters
from llmkit.engine.scheduling.requests import (
    CompletionRequest,
    Event,
    Failed,
    Finished,
    OnEvent,
    Progress,
    RequestHandle,
    RequestTimings,
    SlotInfo,
    SlotState,
    Started,
    TokenEvent,
)
from llmkit.errors import DrainingError, LlmkitError, QueueFullError
from llmkit.params import ContextParams
from tests.tools.fake_engine import BOS, EOS, N_VOCAB, ByteTokenizer

FIM = {"fim_pre": 258, "fim_suf": 259, "fim_mid": 260}


class FakeTokenizer(ByteTokenizer):
    """Bytes are tokens; with tokens for filling gaps, and `<eos>` among a text's."""

    bos_id, eos_id, n_vocab = BOS, EOS, N_VOCAB
    fim_ids: dict[str, int] = FIM

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        ids: list[int] = [BOS] * (self.add_bos and add_special)
        for i, part in enumerate(text.encode("utf-8", "replace").split(b"<eos>" if parse_special else b"\0never")):
            ids += [EOS] * (i > 0) + list(part)
        return ids


class FakeEngine:
    """Gives each request the scripted answer, a byte a step. `gate`: cleared, nothing happens until it is set.

    answer: of a request, as bytes; what is behind its end is EOS. handles: all requests ever handed in.
    """

    def __init__(self, n_slots: int = 4, n_queue: int = 64, answer: bytes = " wörld!".encode()) -> None:
        self.n_slots, self.n_queue = n_slots, n_queue
        self.answer: Callable[[CompletionRequest], bytes] = lambda request: answer
        self.fails_with: LlmkitError | None = None
        self.handles: list[RequestHandle] = []
        self.stepped: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.hand_over: Callable[[Callable[[], None]], object] = lambda deliver: deliver()
        self.calls: list[Any] = []
        self.tree: Any = SimpleNamespace(entries=lambda namespace=None: [])
        self._running: dict[int, Any] = {}
        self._waiting: deque[RequestHandle] = deque()
        self._changed = threading.Condition()
        self._closed = self._draining = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, request: CompletionRequest, on_event: OnEvent) -> RequestHandle:
        with self._changed:
            if self._draining:
                raise DrainingError("the engine is ending")
            if len(self._waiting) >= self.n_queue:
                raise QueueFullError(f"{self.n_queue} requests are waiting", "Try again later.", 2.5)
            handle = RequestHandle(len(self.handles), request, on_event, 0.0)
            self.handles.append(handle)
            self._waiting.append(handle)
            self._changed.notify_all()
            return handle

    def cancel(self, handle: RequestHandle) -> None:
        with self._changed:
            handle.cancelled = True
            self._changed.notify_all()

    def slots(self) -> list[SlotInfo]:
        busy = list(self._running)
        return [
            SlotInfo(i, 128, SlotState.GENERATING, busy[i], self.handles[busy[i]].request)
            if i < len(busy)
            else SlotInfo(i, 128, SlotState.IDLE)
            for i in range(self.n_slots)
        ]

    def counters(self) -> Counters:
        n = len(self.handles)
        found = Counters(n_prompt=7 * n, n_cached=n, n_submitted=n, hits=3, misses=1, tokens_asked=40, tokens_hit=30)
        found.first_token_s.observe(0.02)
        return found

    def call(self, function: Callable[[Any, Any], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(None, self.tree))
        except BaseException as error:
            future.set_exception(error)
        return future

    def drain(self, timeout_s: float) -> bool:
        self._draining = True
        return True

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.gate.set()
        self._thread.join()

    @property
    def n_open(self) -> int:
        """Requests that are neither finished nor cancelled."""
        return len(self._waiting) + len(self._running)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._waiting and not self._running:
                    self._changed.wait()
                if self._closed:
                    return
                while self._waiting and len(self._running) < self.n_slots:
                    handle = self._waiting.popleft()
                    self._running[handle.id] = [_events(handle, i, self) for i in range(handle.request.n_cmpl)]
            self._wait_at_gate()
            self._step()

    def _wait_at_gate(self) -> None:
        """Cancelling goes on all the same."""
        while not self.gate.wait(0.005):
            for queue in (list(self._waiting), [self.handles[i] for i in self._running]):
                for handle in queue:
                    if handle.cancelled:
                        self._drop(handle)

    def _drop(self, handle: RequestHandle) -> None:
        with self._changed:
            self._running.pop(handle.id, None)
            if handle in self._waiting:
                self._waiting.remove(handle)

    def _step(self) -> None:
        events: list[tuple[RequestHandle, Event]] = []
        for id, sources in list(self._running.items()):
            handle = self.handles[id]
            if handle.cancelled:
                self._drop(handle)
                continue
            self.stepped.append(id)
            found = [event for source in sources if (event := next(source, None)) is not None]
            if not found:
                self._drop(handle)
            events += [(handle, event) for event in found]
        self.hand_over(lambda: [handle.on_event(event) for handle, event in events] and None)


def _events(handle: RequestHandle, index: int, engine: FakeEngine) -> Any:
    """What happens to one continuation."""
    import codecs

    request = handle.request
    n_prompt, ids = len(request.prompt_ids), list[int]()
    yield Started(index, handle.id % engine.n_slots, n_prompt)
    if engine.fails_with is not None:
        yield Failed(index, engine.fails_with)
        return
    yield Progress(index, n_prompt, 1, n_prompt, 0.25)
    decoder, stops = codecs.getincrementaldecoder("utf-8")("replace"), StopStrings(request.stops)
    reason, n_max = StopReason.LIMIT, request.params.n_predict
    for token in [*engine.answer(request), EOS]:
        if n_max >= 0 and len(ids) >= n_max:
            break
        ids.append(token)
        text = "" if token == EOS else stops.push(decoder.decode(bytes([token])))
        yield TokenEvent(index, token, text, _logprobs(request, token), _timings(n_prompt, ids))
        if token == EOS or stops.found:
            reason = StopReason.EOS if token == EOS else StopReason.WORD
            break
    tail = stops.push(decoder.decode(b"", True)) + stops.finish()
    yield Finished(
        index, handle.id % engine.n_slots, reason, stops.found, tail, tuple(ids), _timings(n_prompt, ids), False,
        n_prompt + len(ids), request.sampling.seed + index,
    )  # fmt: skip


def _logprobs(request: CompletionRequest, token: int) -> Logprobs | None:
    n = request.params.n_logprobs
    return (
        None if n is None else Logprobs(TokenLogprob(token, -0.5), tuple(TokenLogprob(i, -1.0 - i) for i in range(n)))
    )


def _timings(n_prompt: int, ids: list[int]) -> RequestTimings:
    return RequestTimings(1, n_prompt - 1, 0.25, len(ids), 0.5, 0.01, 0.26)


class FakeTemplate:
    """`<role>text` of each message, and `<assistant>` behind them."""

    source = "fake"

    def render(self, messages: list[dict[str, Any]], **more: Any) -> str:
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return text + "<assistant>" * (more["add_generation_prompt"] and not more["continue_final_message"])


class FakeGrammars:
    """Grammars are what they were made from."""

    def from_gbnf(self, text: str) -> Any:
        if "::=" not in text:
            raise LlmkitError("the grammar has no rule")
        return ("gbnf", text)

    def from_json_schema(self, schema: Any) -> Any:
        return ("schema", schema)


def fake_model() -> Any:
    """What the routes look at of a model."""
    gguf = SimpleNamespace(
        path="fake.gguf", tensors={}, str=lambda key, default=None: default, u32=lambda key, default=0: default
    )
    config = SimpleNamespace(n_vocab=N_VOCAB + 3, n_ctx_train=128, n_embd=8, windows=(0, 0))
    return SimpleNamespace(name="fake", arch="llama", gguf=gguf, config=config)


def fake_context() -> Any:
    """What the routes look at of a context."""
    kind = SimpleNamespace(
        name="full", cells_used=32, cells_peak=64, cells_total=128, bytes_used=1, bytes_peak=2, bytes_total=3
    )
    usage = SimpleNamespace(kinds=(kind,))
    return SimpleNamespace(params=ContextParams(), memory=SimpleNamespace(usage=lambda: usage))
