"""What is said to and by the engine's thread: what is refused when it is made, and the counters' snapshot."""

import pytest

from llmkit.engine.scheduling.counters import Counters, Histogram
from llmkit.engine.scheduling.requests import CompletionRequest, EngineParams, SlotInfo, SlotState
from llmkit.errors import UsageError


@pytest.mark.parametrize(("field", "value"), [("n_cmpl", 0), ("id_slot", -2), ("prompt_ids", [])])
def test_impossible_requests_are_refused_when_made(field: str, value: object) -> None:
    with pytest.raises(UsageError):
        CompletionRequest(**{"prompt_ids": [1], field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["n_slots", "n_ctx_slot", "n_queue", "max_chunk", "max_chunk_s"])
def test_impossible_settings_are_refused_by_name(field: str) -> None:
    with pytest.raises(UsageError, match=field):
        EngineParams(**{field: -1})


def test_an_idle_slot_is_not_processing() -> None:
    states = {state: SlotInfo(0, 64, state).is_processing for state in SlotState}
    assert states == {state: state is not SlotState.IDLE for state in SlotState}


def test_a_histogram_counts_each_value_once_and_a_bound_belongs_below() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert (histogram.counts, histogram.total, histogram.n) == ([2, 2, 1], 7.5, 5)


def test_a_snapshot_stays_what_it_was() -> None:
    counters = Counters()
    counters.queue_s.observe(0.1)
    before = counters.snapshot()
    counters.n_decode += 1
    counters.queue_s.observe(0.1)
    assert (before.n_decode, before.queue_s.n, counters.queue_s.n) == (0, 1, 2)
