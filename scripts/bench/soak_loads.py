"""What goes through the engine in a soak: sessions of several turns over one system prompt, and requests of all kinds.

Owns who asks for what, how many at once, and what came of it. Knows nothing of how it is judged.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from llmkit.engine.engine_thread import EngineThread
from llmkit.engine.requests import CompletionRequest, Event, Failed, Finished, RequestHandle, Started, TokenEvent
from llmkit.params import GenerateParams, SamplingParams

GREEDY = SamplingParams(temp=0)
WAIT_S = 600.0


@dataclass
class Asked:
    """A request and what its client was told."""

    prompt: list[int]
    n_predict: int
    tokens: list[tuple[int, float]] = field(default_factory=list)
    end: Finished | Failed | None = None
    slots: int = 0

    @property
    def ids(self) -> list[int]:
        return [token for token, _ in self.tokens]


class Clients:
    """Puts requests to the engine and waits for their ends; `over` gives one as it ends."""

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._ended = queue.SimpleQueue[Asked]()
        self.n_open = 0

    def ask(self, asked: Asked, **options: object) -> RequestHandle:
        """Hands a request in."""

        def on_event(event: Event) -> None:
            if isinstance(event, TokenEvent):
                assert event.logprobs is not None
                asked.tokens.append((event.id, event.logprobs.chosen.logprob))
            elif isinstance(event, Started):
                asked.slots += 1
            elif isinstance(event, Finished | Failed):
                asked.end = event
                self._ended.put(asked)

        params = GenerateParams(asked.n_predict, n_logprobs=0)
        self.n_open += 1
        return self._engine.submit(CompletionRequest(asked.prompt, params, GREEDY, **options), on_event)  # type: ignore[arg-type]

    def over(self) -> Asked:
        """The next that ends."""
        asked = self._ended.get(timeout=WAIT_S)
        self.n_open -= 1
        return asked


@dataclass(frozen=True)
class Sessions:
    """How many sessions of how many turns, after a system prompt of n_system tokens."""

    n_sessions: int = 1000
    n_turns: int = 3
    n_system: int = 512
    n_user: tuple[int, int] = (16, 48)
    n_answer: int = 24


def run_sessions(engine: EngineThread, load: Sessions, draw: random.Random, n_at_once: int) -> list[Asked]:
    """All turns of all sessions in a random order, a session's own in theirs; as they ended."""
    n_vocab = engine.ctx.model.config.n_vocab
    system = [draw.randrange(3, n_vocab) for _ in range(load.n_system)]
    texts = [list(system) for _ in range(load.n_sessions)]
    left = dict.fromkeys(range(load.n_sessions), load.n_turns)
    clients, asked_by, done = Clients(engine), dict[int, int](), list[Asked]()
    while left or clients.n_open:
        while left and clients.n_open < n_at_once:
            i = draw.randrange(load.n_sessions)
            if i not in left:
                continue
            turns = left.pop(i)
            texts[i] += [draw.randrange(3, n_vocab) for _ in range(draw.randint(*load.n_user))]
            asked = Asked(list(texts[i]), load.n_answer)
            asked_by[id(asked)] = i * load.n_turns + turns - 1
            clients.ask(asked)
        asked = clients.over()
        done.append(asked)
        i, turns = divmod(asked_by.pop(id(asked)), load.n_turns)
        texts[i] += asked.ids
        if turns:
            left[i] = turns
    return done


def unbounded_hits(done: list[Asked], load: Sessions) -> int:
    """Prompt tokens that a cache without bounds finds: the system prompt, and what the session had before."""
    had: dict[tuple[int, ...], int] = {}
    hits = 0
    for number, asked in enumerate(done):
        key = tuple(asked.prompt[load.n_system : load.n_system + load.n_user[0]])  # random: it names the session
        hits += had.get(key, load.n_system if number else 0)
        had[key] = len(asked.prompt) + len(asked.ids) - 1
    return hits


def run_random(
    engine: EngineThread, n_requests: int, draw: random.Random, n_at_once: int, watch: Callable[[int], None]
) -> list[Asked]:
    """Requests of all kinds: alike and not, of several keys, with continuations, cancelled at any moment.

    Those that came to their end and are to be checked are returned; `watch` is called with the number that is through.
    """
    n_vocab = engine.ctx.model.config.n_vocab
    texts = [[draw.randrange(3, n_vocab) for _ in range(draw.choice((20, 100, 300)))] for _ in range(20)]
    clients, live, kept = Clients(engine), dict[int, tuple[RequestHandle, Asked]](), list[Asked]()
    n_asked = n_over = 0
    while n_over < n_requests:
        while n_asked < n_requests and clients.n_open < n_at_once:
            text = draw.choice(texts)
            prompt = text[: draw.randint(1, len(text))] + [
                draw.randrange(3, n_vocab) for _ in range(draw.randint(0, 40))
            ]
            asked = Asked(prompt, draw.choice((0, 1, 4, 16, 64)))
            options = {"namespace": draw.choice(("public", "key x", "key y")), "cache_prompt": draw.random() < 0.9}
            live[id(asked)] = clients.ask(asked, **options), asked
            n_asked += 1
        if draw.random() < 0.2 and live:
            engine.cancel(draw.choice(list(live.values()))[0])
        if draw.random() < 0.05:
            time.sleep(draw.random() * 0.002)
        asked = clients.over()
        del live[id(asked)]
        n_over += 1
        watch(n_over)
        if draw.random() < 0.02:
            kept.append(asked)
    return kept
