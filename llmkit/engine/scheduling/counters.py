"""What the engine's thread has done, in numbers. Written by that thread alone; read from any through a snapshot.

Owns the numbers and the histograms' bounds. Knows nothing of how they are shown.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0)
"""Upper bounds of the buckets, in seconds; one more holds what is above."""


@dataclass
class Histogram:
    """How many observations fell below each bound (and not below the one before), and the sum of all."""

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Adds one. A value equal to a bound is within it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def n(self) -> int:
        return sum(self.counts)

    def copy(self) -> Histogram:
        """One that later observations leave alone."""
        return Histogram(self.bounds, list(self.counts), self.total)


@dataclass
class Counters:
    """Since the start, unless said otherwise.

    n_prompt, n_cached: prompt tokens computed, and found computed. prompt_s, predicted_s: as RequestTimings has them,
    summed over requests. n_decode: steps; busy_slots: slots that took part, summed over steps. step_s: time in decode.
    hits, misses: requests that found part of their prompt, and none. tokens_asked, tokens_hit: by token; their ratio
    is the hit rate. n_evicted: cached prefixes that left. n_parked: running texts that made room for others.
    n_processing, n_waiting: requests now, in slots and before. n_past_max: most tokens that a text had.
    queue_s, first_token_s, between_tokens_s: of each request, and of each token but a text's first.
    """

    n_prompt: int = 0
    n_cached: int = 0
    prompt_s: float = 0.0
    n_predicted: int = 0
    predicted_s: float = 0.0
    n_decode: int = 0
    busy_slots: int = 0
    step_s: float = 0.0
    n_past_max: int = 0
    hits: int = 0
    misses: int = 0
    tokens_asked: int = 0
    tokens_hit: int = 0
    n_evicted: int = 0
    n_parked: int = 0
    n_submitted: int = 0
    n_finished: int = 0
    n_cancelled: int = 0
    n_failed: int = 0
    n_refused: int = 0
    n_processing: int = 0
    n_waiting: int = 0
    queue_s: Histogram = field(default_factory=Histogram)
    first_token_s: Histogram = field(default_factory=Histogram)
    between_tokens_s: Histogram = field(default_factory=Histogram)

    def snapshot(self) -> Counters:
        """A copy that later counting leaves alone."""
        return replace(
            self,
            queue_s=self.queue_s.copy(),
            first_token_s=self.first_token_s.copy(),
            between_tokens_s=self.between_tokens_s.copy(),
        )
