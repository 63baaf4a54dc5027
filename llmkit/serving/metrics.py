"""/metrics: what the engine counts, under llama.cpp's names and ours, as Prometheus' text or as JSON.

Owns names and help. One registry a server, filled from a snapshot when it is read: nothing waits for the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from llmkit.engine.scheduling.counters import Counters, Histogram
from llmkit.serving.served import ServerState

_THEIR_COUNTERS = (
    ("prompt_tokens", "Number of prompt tokens processed, excluding cached tokens", lambda c: c.n_prompt),
    ("prompt_tokens_cached", "Number of prompt tokens reused from the cache", lambda c: c.n_cached),
    ("prompt_seconds", "Total time spent processing prompts", lambda c: c.prompt_s),
    ("tokens_predicted", "Number of generation tokens processed", lambda c: c.n_predicted),
    ("tokens_predicted_seconds", "Total time spent generating tokens", lambda c: c.predicted_s),
    ("n_decode", "Number of steps that were decoded", lambda c: c.n_decode),
)
_THEIR_GAUGES = (
    ("n_tokens_max", "Largest observed sequence length (prompt + generation)", lambda c: c.n_past_max),
    ("prompt_tokens_seconds", "Average prompt throughput in tokens/s", lambda c: _ratio(c.n_prompt, c.prompt_s)),
    (
        "predicted_tokens_seconds",
        "Average generation throughput in tokens/s",
        lambda c: _ratio(c.n_predicted, c.predicted_s),
    ),
    ("requests_processing", "Number of requests processing", lambda c: c.n_processing),
    ("requests_deferred", "Number of requests that wait for a slot", lambda c: c.n_waiting),
    ("n_busy_slots_per_decode", "Average number of busy slots per step", lambda c: _ratio(c.busy_slots, c.n_decode)),
)
_OUR_COUNTERS = (
    ("prefix_hits", "Requests that found a part of their prompt computed", lambda c: c.hits),
    ("prefix_misses", "Requests that found nothing of their prompt", lambda c: c.misses),
    ("prefix_tokens_asked", "Prompt tokens that were looked for", lambda c: c.tokens_asked),
    ("prefix_tokens_hit", "Prompt tokens that were found computed", lambda c: c.tokens_hit),
    ("prefix_evictions", "Cached prefixes that made room for others", lambda c: c.n_evicted),
    ("parks", "Running texts that were set aside to make room, and went on later", lambda c: c.n_parked),
    ("requests_submitted", "Requests that were taken in", lambda c: c.n_submitted),
    ("requests_finished", "Requests that came to their end", lambda c: c.n_finished),
    ("requests_cancelled", "Requests whose client went away", lambda c: c.n_cancelled),
    ("requests_failed", "Requests that ended in an error", lambda c: c.n_failed),
    ("requests_refused", "Requests that found the queue full", lambda c: c.n_refused),
    ("step_seconds", "Time spent in steps", lambda c: c.step_s),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[Counters], Histogram]], ...] = (
    ("queue_seconds", "Time from a request's arrival to its first step", lambda c: c.queue_s),
    ("first_token_seconds", "Time from a request's arrival to its first token", lambda c: c.first_token_s),
    ("between_tokens_seconds", "Time from one token of a text to the next", lambda c: c.between_tokens_s),
)


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0


class EngineCollector(Collector):
    """Reads the counters of the engine and the cells of its memory whenever metrics are asked for."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """All families; those of the engine once it is there."""
        yield GaugeMetricFamily("llmkit:ready", "1 when the model is loaded", self._state.served is not None)
        served = self._state.served
        if served is None:
            return
        counters = served.engine.counters()
        yield from _families("llamacpp:", _THEIR_COUNTERS, _THEIR_GAUGES, counters)
        yield from _families("llmkit:", _OUR_COUNTERS, (), counters)
        hit_rate = _ratio(counters.tokens_hit, counters.tokens_asked)
        yield GaugeMetricFamily("llmkit:prefix_hit_rate", "Prompt tokens found, of those looked for", hit_rate)
        for name, text, read in _HISTOGRAMS:
            yield _histogram(f"llmkit:{name}", text, read(counters))
        yield from _memory(served.ctx.memory.usage())


def _families(prefix: str, counts: Any, gauges: Any, counters: Counters) -> Iterable[Metric]:
    for name, text, read in counts:
        yield CounterMetricFamily(prefix + name, text, read(counters))
    for name, text, read in gauges:
        yield GaugeMetricFamily(prefix + name, text, read(counters))


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    names = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    sums = accumulate(histogram.counts)
    return HistogramMetricFamily(name, text, buckets=list(zip(names, sums, strict=True)), sum_value=histogram.total)


def _memory(usage: Any) -> Iterable[Metric]:
    """Cells and bytes of each kind of memory."""
    for unit, thing in (("cells", "Cells for tokens"), ("bytes", "Bytes of cells")):
        family = GaugeMetricFamily(
            f"llmkit:memory_{unit}", f"{thing}, by kind of memory and state", labels=["kind", "state"]
        )
        for kind in usage.kinds:
            for state in ("used", "peak", "total"):
                family.add_metric([kind.name, state], getattr(kind, f"{unit}_{state}"))
        yield family


class Metrics:
    """A server's registry."""

    def __init__(self, state: ServerState) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(EngineCollector(state))
        self._state = state

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)

    def json(self) -> dict[str, Any]:
        """The same: each family with its samples; and how well prefixes are found, in short."""
        found: dict[str, Any] = {}
        for family in self.registry.collect():
            samples = [
                {"name": sample.name, "labels": sample.labels, "value": _plain(sample.value)}
                for sample in family.samples
            ]
            found[family.name] = {"type": family.type, "help": family.documentation, "samples": samples}
        return {"state_cache": self._state_cache(), "metrics": found}

    def _state_cache(self) -> dict[str, float]:
        """hits, misses and hit_rate count requests, token_hit_rate counts their tokens."""
        served = self._state.served
        counters = Counters() if served is None else served.engine.counters()
        return {
            "hits": counters.hits,
            "misses": counters.misses,
            "hit_rate": _ratio(counters.hits, counters.hits + counters.misses),
            "tokens_asked": counters.tokens_asked,
            "tokens_hit": counters.tokens_hit,
            "token_hit_rate": _ratio(counters.tokens_hit, counters.tokens_asked),
        }


def _plain(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(value)
