"""What goes through a server in a soak: sessions of several turns over one system prompt, and requests of all kinds.

Owns who asks for what, how many at once, and what came of it. Knows neither where it is computed nor how it is judged.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

WAIT_S = 600.0


def resident_mb(pid: int) -> float:
    """Memory that a process has, in MB (Linux)."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass
class Asked:
    """A request, and what came of it: tokens with their log-probabilities; outcome: finished, cancelled, or a fault."""

    prompt: list[int]
    n_predict: int
    tokens: list[tuple[int, float]] = field(default_factory=list)
    outcome: str = ""

    @property
    def ids(self) -> list[int]:
        return [token for token, _ in self.tokens]


class Clients(Protocol):
    """Clients of one server, and what can be asked about it."""

    n_vocab: int
    n_open: int
    eog_ids: frozenset[int]  # that are never chosen

    def ask(self, asked: Asked, key: int = 0, cached: bool = True) -> Callable[[], None]:
        """Hands a request in; gives what cancels it."""
        ...

    def over(self) -> Asked:
        """The next that ends."""
        ...

    def counts(self) -> dict[str, int]:
        """tokens_asked, tokens_hit, n_evicted, n_parked, n_cancelled: since the start."""
        ...

    def held_mb(self) -> float:
        """Memory of the server's process but for the cells, which are bounded from the start."""
        ...

    def lost(self) -> int:
        """Blocks that nobody gives back when all is through and the cache is empty, and slots that are busy."""
        ...


@dataclass(frozen=True)
class Sessions:
    """How many sessions of how many turns, after a system prompt of n_system tokens."""

    n_sessions: int = 1000
    n_turns: int = 3
    n_system: int = 512
    n_user: tuple[int, int] = (16, 48)
    n_answer: int = 24


def run_sessions(clients: Clients, load: Sessions, draw: random.Random, n_at_once: int) -> list[Asked]:
    """All turns of all sessions in a random order, a session's own in theirs; as they ended."""
    system = _text(clients, draw, load.n_system)
    texts = [list(system) for _ in range(load.n_sessions)]
    left = dict.fromkeys(range(load.n_sessions), load.n_turns)
    asked_by, done = dict[int, tuple[int, int]](), list[Asked]()
    while left or clients.n_open:
        while left and clients.n_open < n_at_once:
            i = draw.randrange(load.n_sessions)
            if i not in left:
                continue
            texts[i] += _text(clients, draw, draw.randint(*load.n_user))
            asked = Asked(list(texts[i]), load.n_answer)
            asked_by[id(asked)] = i, left.pop(i) - 1
            clients.ask(asked)
        asked = clients.over()
        done.append(asked)
        i, n_turns = asked_by.pop(id(asked))
        texts[i] += asked.ids
        if n_turns:
            left[i] = n_turns
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
    clients: Clients, n_requests: int, draw: random.Random, n_at_once: int, watch: Callable[[int], None]
) -> list[Asked]:
    """Requests of all kinds: alike and not, of several keys, cached and not, cancelled at any moment.

    One in fifty is given back, to be checked; `watch` is called with the number that is through.
    """
    texts = [_text(clients, draw, draw.choice((20, 100, 300))) for _ in range(20)]
    live, kept = dict[int, Callable[[], None]](), list[Asked]()
    n_asked = n_over = 0
    while n_over < n_requests:
        while n_asked < n_requests and clients.n_open < n_at_once:
            text = draw.choice(texts)
            prompt = text[: draw.randint(1, len(text))] + _text(clients, draw, draw.randint(0, 40))
            asked = Asked(prompt, draw.choice((0, 1, 4, 16, 64)))
            live[id(asked)] = clients.ask(asked, draw.randrange(3), draw.random() < 0.9)
            n_asked += 1
        if draw.random() < 0.2:
            draw.choice(list(live.values()))()
        if draw.random() < 0.05:
            time.sleep(draw.random() * 0.002)
        asked = clients.over()
        del live[id(asked)]
        n_over += 1
        watch(n_over)
        if draw.random() < 0.02:
            kept.append(asked)
    return kept


def _text(clients: Clients, draw: random.Random, n: int) -> list[int]:
    return [draw.randrange(3, clients.n_vocab) for _ in range(n)]
