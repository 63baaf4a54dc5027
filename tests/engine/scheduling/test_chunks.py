"""Shares of a step: what is shared out, where chunks end, how their size follows the measured speed."""

from hypothesis import given
from hypothesis import strategies as st

from llmkit.engine.scheduling.chunks import ChunkSize, cut_at, equal_parts


@given(st.lists(st.integers(1, 400), max_size=12), st.integers(0, 300))
def test_shares_are_equal_but_for_those_who_want_less(wanted: list[int], budget: int) -> None:
    parts = equal_parts(wanted, budget)
    assert sum(parts) == min(budget, sum(wanted))
    assert all(0 <= part <= want for part, want in zip(parts, wanted, strict=True))
    most = max(parts, default=0)
    assert all(
        part == want or part >= most - 1 or sum(parts) == budget for part, want in zip(parts, wanted, strict=True)
    )
    hungry = [part for part, want in zip(parts, wanted, strict=True) if part < want]
    assert not hungry or min(hungry) >= budget // len(wanted)


def test_a_chunk_ends_at_the_first_stop_on_its_way() -> None:
    assert [cut_at(10, n, [5, 10, 30, 20]) for n in (5, 10, 15, 100)] == [5, 10, 10, 10]
    assert cut_at(10, 7, []) == 7


def test_the_size_follows_the_speed_within_bounds() -> None:
    chunk = ChunkSize(256, 0.25)
    first = chunk.choose(1000, True)
    chunk.measured(first, first / 400)
    assert chunk.choose(1000, True) == 100
    chunk.measured(2, 100.0)
    assert chunk.choose(1000, True) == 100, "a step with two prompt tokens says nothing"
    for _ in range(30):
        chunk.measured(100, 0.01)
    assert chunk.choose(1000, True) == 256
    for _ in range(60):
        chunk.measured(100, 10.0)
    assert (chunk.choose(1000, True), chunk.choose(1000, False)) == (16, 64)


def test_a_step_takes_its_time_whatever_it_costs_without_prompts() -> None:
    chunk = ChunkSize(256, 0.25)
    for n in (100, 40):
        chunk.measured(0, 0.05)
        chunk.measured(n, 0.05 + n * 0.002)
        assert chunk.choose(1000, True) == 100


def test_a_small_rest_goes_along() -> None:
    chunk = ChunkSize(256, 0.25)
    chunk.measured(100, 0.25)
    assert [chunk.choose(n, True) for n in (100, 150, 151)] == [100, 150, 100]
