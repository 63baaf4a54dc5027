"""A client that measures: one streamed completion, its times and what the server says of its prompt.

Owns the two APIs, native and OpenAI's, as far as a measurement needs them. Plain sockets and threads: a client that
computes little disturbs a server on the same machine little.
"""

import http.client
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from llmkit.errors import LlmkitError

_TEXT = (
    "the river stone carried old light over quiet fields while birds turned north and every house kept one window open "
    "for rain a small boat waited near seven trees where nobody spoke about winter until morning came back slowly"
)
WORDS = tuple(_TEXT.split())
TIMEOUT_S = 1200.0


class ServerError(LlmkitError):
    """The server is not there, or answered something else than a completion."""


@dataclass
class Sample:
    """One request. Seconds since it was sent; prompt_n and cache_n are None where the server does not tell."""

    first_s: float = 0.0
    end_s: float = 0.0
    began: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    n_tokens: int = 0
    prompt_n: int | None = None
    cache_n: int | None = None


@dataclass(frozen=True)
class Target:
    """A server: its address, which API to use, a key if it wants one."""

    url: str
    api: str = "native"
    key: str | None = None

    @property
    def name(self) -> str:
        return urlsplit(self.url).netloc

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "127.0.0.1", parts.port, timeout=TIMEOUT_S)

    def post(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        """The lines of an answer; ServerError for one that is an error."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        connection = self.connect()
        try:
            connection.request("POST", urlsplit(self.url).path + path, json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ServerError(f"{self.url}{path} answered {response.status}: {response.read(300)!r}")
            yield from response
        except OSError as error:
            raise ServerError(f"{self.url} cannot be reached: {error}", "start the server first") from error
        finally:
            connection.close()

    def n_tokens(self, text: str) -> int:
        """How many tokens a text has; by the number of words where the server has no /tokenize."""
        try:
            return len(json.loads(b"".join(self.post("/tokenize", {"content": text})))["tokens"])
        except (ServerError, ValueError, KeyError):
            return len(text.split())

    def complete(self, prompt: str, n_predict: int) -> Sample:
        """One greedy completion of exactly n_predict tokens, streamed."""
        body: dict[str, Any] = {"prompt": prompt, "stream": True, "temperature": 0, "ignore_eos": True}
        if self.api == "native":
            path, body = "/completion", {**body, "n_predict": n_predict, "cache_prompt": True}
        else:
            path, more = "/v1/completions", {"max_tokens": n_predict, "stream_options": {"include_usage": True}}
            body = {**body, **more, "model": "default"}
        sample = Sample(began=time.perf_counter())
        last = sample.began
        for line in self.post(path, body):
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            now, event = time.perf_counter(), json.loads(line[6:])
            if isinstance(event, dict) and "error" in event:
                raise ServerError(f"{self.url}: {event['error']}")
            if _has_token(event):
                if sample.n_tokens:
                    sample.gaps_s.append(now - last)
                else:
                    sample.first_s = now - sample.began
                last = now
                sample.n_tokens += 1
            _take_counts(sample, event)
        sample.end_s = last - sample.began
        if sample.n_tokens == 0:
            raise ServerError(f"{self.url} streamed no token")
        return sample


def _has_token(event: Any) -> bool:
    """Whether an event carries text, or in the native form ids."""
    if not isinstance(event, dict):
        return False
    if "choices" in event:
        return bool(event["choices"]) and bool(event["choices"][0].get("text"))
    return (
        not event.get("stop") and bool(event.get("content") or event.get("tokens")) and "prompt_progress" not in event
    )


def _take_counts(sample: Sample, event: Any) -> None:
    if not isinstance(event, dict):
        return
    timings = event.get("timings")
    if isinstance(timings, dict):
        sample.prompt_n, sample.cache_n = timings.get("prompt_n"), timings.get("cache_n")
    usage = event.get("usage")
    if isinstance(usage, dict) and sample.cache_n is None:
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached is not None:
            sample.cache_n, sample.prompt_n = cached, usage["prompt_tokens"] - cached


def words(n: int, seed: int) -> str:
    """n random words, always the same for a seed."""
    choose = random.Random(seed)
    return " ".join(choose.choice(WORDS) for _ in range(n))


def text_of(target: Target, n_tokens: int, seed: int) -> str:
    """A text of about so many tokens, as the server counts them."""
    n_words = n_tokens
    for _ in range(4):
        n = target.n_tokens(words(n_words, seed))
        if n == n_tokens:
            break
        n_words = max(1, round(n_words * n_tokens / max(n, 1)))
    return words(n_words, seed)
