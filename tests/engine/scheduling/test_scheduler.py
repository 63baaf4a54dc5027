"""A step at a time: who is computed together, who waits for whom, and that nobody's answer depends on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmkit.engine.context import Context
from llmkit.engine.generation.generate import StopReason
from llmkit.engine.scheduling.requests import Failed, Finished, Progress, SlotState, Started, TokenEvent
from llmkit.errors import NumericsError, RequestTimeoutError
from llmkit.params import SamplingParams
from tests.engine.scheduling.driving import Bench, alone, ids, opened
from tests.make_models import make_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("scheduler") / "m.gguf", n_ctx_train=4096)


def tail(i: int) -> list[int]:
    """Six tokens, of which already the first is nobody else's."""
    return [100 + i, *ids(5, 10 + i)]


@pytest.fixture
def ctx(path: Path) -> Iterator[Context]:
    with opened(path, 1024) as ctx:
        yield ctx


def test_one_request_is_told_its_start_its_progress_its_tokens_and_its_end(ctx: Context) -> None:
    bench = Bench(ctx)
    told = bench.submit(ids(10, 1), 3)
    bench.run()
    assert [type(event) for event in told.events] == [Started, Progress, TokenEvent, TokenEvent, TokenEvent, Finished]
    assert told.answer == alone(ctx, ids(10, 1), 3)
    assert (told.end.stop_reason, told.end.n_past, told.end.ids) == (StopReason.LIMIT, 12, tuple(told.ids))
    timings = told.end.timings
    assert (timings.cache_n, timings.prompt_n, timings.predicted_n) == (0, 10, 3)
    bench.assert_nothing_lost()


def test_a_second_time_all_but_the_last_token_is_found(ctx: Context) -> None:
    bench = Bench(ctx)
    bench.submit(ids(40, 1))
    bench.run()
    told = bench.submit(ids(40, 1))
    bench.run()
    assert (told.end.timings.cache_n, told.end.timings.prompt_n) == (39, 1)
    assert told.answer == bench.told[0].answer
    counters = bench.scheduler.counters
    assert (counters.hits, counters.misses, counters.tokens_hit, counters.tokens_asked) == (1, 1, 39, 80)


def test_of_ten_with_one_uncached_prefix_one_computes_it_and_nine_wait(path: Path) -> None:
    prefix = ids(300, 1)
    with opened(path, n_slots=10, n_ctx=2048) as ctx:
        bench = Bench(ctx, n_slots=10)
        told = [bench.submit(prefix + tail(i)) for i in range(10)]
        bench.step()
        assert bench.phases() == ["PROMPT"] + ["WAITING"] * 9
        assert [slot.state for slot in (s.info() for s in bench.scheduler.slots)].count(SlotState.WAITING) == 9
        bench.run()
        assert bench.scheduler.counters.n_prompt == 306 + 9 * 6
        assert [t.end.timings.cache_n for t in told] == [0] + [300] * 9
        assert [t.answer for t in told] == [alone(ctx, prefix + tail(i)) for i in range(10)]
        assert {entry.n_tokens for entry in bench.tree.entries()} == {300, 306, 309}
        bench.assert_nothing_lost()


def test_tails_of_a_cached_prefix_are_computed_together(ctx: Context) -> None:
    bench = Bench(ctx)
    bench.submit(ids(100, 1), 0)
    bench.run()
    told = [bench.submit(ids(100, 1) + ids(9, 10 + i)) for i in range(4)]
    bench.step()
    assert [len(t.ids) for t in told] == [1] * 4


def test_when_the_one_who_computes_is_cancelled_another_goes_on_where_it_was(ctx: Context) -> None:
    prefix = ids(300, 1)
    bench = Bench(ctx, max_chunk=64)
    told = [bench.submit(prefix + tail(i)) for i in range(3)]
    bench.step()
    bench.step()
    bench.handles[0].cancelled = True
    bench.step()
    assert told[0].end.stop_reason is StopReason.INTERRUPTED
    assert bench.phases() == ["PROMPT", "WAITING"]
    bench.run()
    assert bench.scheduler.counters.n_prompt == 306 + 6
    assert [t.answer for t in told[1:]] == [alone(ctx, prefix + tail(i)) for i in (1, 2)]
    bench.assert_nothing_lost()


def test_the_wait_is_over_where_the_prompts_part(ctx: Context) -> None:
    bench = Bench(ctx, max_chunk=64)
    leader = bench.submit(ids(100, 1) + ids(300, 2))
    follower = bench.submit(ids(100, 1) + tail(1), 1)
    for _ in range(3):
        bench.step()
    assert (follower.end.timings.cache_n, follower.answer) == (100, alone(ctx, ids(100, 1) + tail(1), 1))
    assert bench.phases() == ["PROMPT"]
    bench.run()
    assert leader.answer == alone(ctx, ids(100, 1) + ids(300, 2))


def test_nobody_waits_for_a_few_tokens(ctx: Context) -> None:
    bench = Bench(ctx)
    bench.scheduler._chunk.measured(1000, 0.1)
    for i in range(3):
        bench.submit(ids(20, 1) + ids(30, 10 + i))
    bench.step()
    assert bench.phases() == ["GENERATING"] * 3


def test_keys_do_not_wait_for_each_other_nor_share(ctx: Context) -> None:
    """Case 48."""
    bench = Bench(ctx)
    told = [bench.submit(ids(100, 1), namespace=name) for name in ("key x", "key y")]
    bench.step()
    assert bench.phases() == ["PROMPT"] * 2
    bench.run()
    told += [bench.submit(ids(100, 1), namespace=name) for name in ("key x", "key y", "key z", "x")]
    bench.run()
    assert [t.end.timings.cache_n for t in told] == [0, 0, 99, 99, 0, 0]
    assert len({tuple(t.ids) for t in told}) == 1


def test_all_keys_read_what_is_public(ctx: Context) -> None:
    bench = Bench(ctx)
    bench.submit(ids(100, 1), 0)
    bench.run()
    told = bench.submit(ids(100, 1) + ids(9, 2), namespace="key x")
    bench.run()
    assert told.end.timings.cache_n == 100
    told = bench.submit(ids(100, 1) + ids(9, 2))
    bench.run()
    assert told.end.timings.cache_n == 100, "what a key computes is not public"


def test_without_cache_prompt_nothing_is_read_or_written(ctx: Context) -> None:
    bench = Bench(ctx)
    bench.submit(ids(100, 1), cache_prompt=False)
    bench.run()
    assert bench.tree.entries() == []
    bench.submit(ids(100, 1))
    bench.run()
    told = bench.submit(ids(100, 1), cache_prompt=False)
    bench.run()
    assert told.end.timings.cache_n == 0


@pytest.mark.parametrize("options", [{}, {"cache_prompt": False, "private": "its own"}])
def test_continuations_share_their_prompt(ctx: Context, options: dict[str, object]) -> None:
    bench = Bench(ctx)
    told = bench.submit(ids(100, 1), 4, n_cmpl=3, **options)
    bench.run()
    ends = [event for event in told.events if isinstance(event, Finished)]
    assert sorted(end.index for end in ends) == [0, 1, 2]
    assert len({end.ids for end in ends}) == 1
    assert bench.scheduler.counters.n_prompt == 102
    assert bool(bench.tree.entries()) is not bool(options), "a private prefix is gone with its request"
    bench.assert_nothing_lost()


def test_prompts_share_a_step_in_equal_parts_and_a_short_one_is_through_at_once(ctx: Context) -> None:
    bench = Bench(ctx, max_chunk=64)
    long = bench.submit(ids(400, 1))
    bench.step()
    short = bench.submit(ids(20, 2))
    bench.step()
    assert len(short.ids) == 1
    done = [event.n_done for event in long.events if isinstance(event, Progress)]
    assert done == [64, 64 + 44]


def test_those_who_generate_get_a_token_every_step(ctx: Context) -> None:
    bench = Bench(ctx, max_chunk=32)
    first = bench.submit(ids(5, 1), 30)
    bench.step()
    bench.submit(ids(400, 2))
    for n in range(2, 10):
        bench.step()
        assert len(first.ids) == n


class Lines:
    """A stream in which every token is a line."""

    def push(self, token: int) -> str:
        return f"{token}\n"

    def finish(self) -> str:
        return ""


def test_a_text_may_have_so_much_time_from_its_first_token_on(ctx: Context) -> None:
    bench = Bench(ctx)
    told = bench.submit(ids(10, 1), -1, stream=Lines(), t_max_predict_s=2.0)
    for _ in range(4):
        bench.step()
        bench.now += 1
    assert (len(told.ids), told.end.stop_reason) == (4, StopReason.LIMIT)


def test_zero_tokens_fill_the_cache_and_report_timings(ctx: Context) -> None:
    """Case 21."""
    bench = Bench(ctx)
    told = bench.submit(ids(50, 1), 0)
    bench.run()
    assert (told.ids, told.end.stop_reason, told.end.timings.prompt_n) == ([], StopReason.LIMIT, 50)
    again = bench.submit(ids(50, 1), 1)
    bench.run()
    assert again.end.timings.cache_n == 49


def test_a_full_context_ends_a_text(path: Path) -> None:
    with opened(path, n_ctx=64) as ctx:
        bench = Bench(ctx)
        told = bench.submit(ids(60, 1), -1)
        bench.run()
        assert (len(told.ids), told.end.stop_reason) == (5, StopReason.CONTEXT)


# Ends


def test_a_cancelled_request_leaves_within_a_step_wherever_it_is(ctx: Context) -> None:
    """Case 28: queued, in its prompt, generating; nobody else is touched."""
    bench = Bench(ctx, n_slots=2, max_chunk=32)
    other = bench.submit(ids(10, 1), 12)
    victims = [bench.submit(ids(300, 2)), bench.submit(ids(300, 3))]
    bench.step()
    assert bench.phases() == ["GENERATING", "PROMPT", "QUEUED"]
    for handle in bench.handles[1:]:
        handle.cancelled = True
    bench.step()
    assert bench.phases() == ["GENERATING"]
    assert [(t.end.stop_reason, t.ids) for t in victims] == [(StopReason.INTERRUPTED, [])] * 2
    third = bench.submit(ids(10, 4), 12)
    bench.step()
    bench.step()
    bench.handles[3].cancelled = True
    bench.step()
    assert third.end.ids == tuple(third.ids) != ()
    bench.run()
    assert other.answer == alone(ctx, ids(10, 1), 12)
    bench.assert_nothing_lost()


def test_what_is_out_of_time_fails_queued_or_running(ctx: Context) -> None:
    bench = Bench(ctx, n_slots=1)
    told = [bench.submit(ids(10, i), -1, deadline_s=2) for i in range(2)]
    late = bench.submit(ids(10, 3), 2)
    bench.step()
    bench.now = 2.0
    bench.run()
    assert [type(t.end.error) for t in told] == [RequestTimeoutError] * 2
    assert late.answer == alone(ctx, ids(10, 3), 2)
    bench.assert_nothing_lost()


class Overflowing:
    """A context in which sequences whose first token is 7 overflow."""

    def __init__(self, ctx: Context) -> None:
        self.__dict__.update(ctx.__dict__)
        self.inner = ctx

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def decode(self, segments: list[object]) -> object:
        bad = [s.seq for s in segments if 7 in [*s.seq.tokens[:1], *s.tokens[:1]] and s.logits != "none"]
        if bad:
            raise NumericsError("no numbers", "", tuple(bad))
        return self.inner.decode(segments)


def test_numbers_that_overflow_fail_their_request_alone(ctx: Context) -> None:
    bench = Bench(Overflowing(ctx))  # type: ignore[arg-type]
    told = [bench.submit([first, *ids(20, i)]) for i, first in enumerate((5, 7, 9, 7))]
    bench.run()
    assert [type(t.end) for t in told] == [Finished, Failed, Finished, Failed]
    assert [told[i].answer for i in (0, 2)] == [alone(ctx, [5, *ids(20, 0)]), alone(ctx, [9, *ids(20, 2)])]
    bench.assert_nothing_lost()


def test_logits_without_a_choice_fail_their_request_alone(ctx: Context) -> None:
    ban = SamplingParams(temp=0, logit_bias=tuple((i, -float("inf")) for i in range(128)))
    bench = Bench(ctx)
    told = [bench.submit(ids(9, 1)), bench.submit(ids(9, 2), sampling=ban), bench.submit(ids(9, 3))]
    bench.run()
    assert isinstance(told[1].end, Failed)
    assert [told[i].answer for i in (0, 2)] == [alone(ctx, ids(9, 1)), alone(ctx, ids(9, 3))]


# Slots and the queue


def test_a_slot_that_was_asked_for_is_waited_for_while_others_go_on(ctx: Context) -> None:
    bench = Bench(ctx, n_slots=2)
    first = bench.submit(ids(9, 1), 6, id_slot=1)
    second = bench.submit(ids(9, 2), 2, id_slot=1)
    third = bench.submit(ids(9, 3), 2)
    bench.run()
    assert [t.end.id_slot for t in (first, second, third)] == [1, 1, 0]


def test_the_longest_prefix_in_memory_goes_first_unless_another_is_overdue(ctx: Context) -> None:
    for now, expected in ((0.0, [0, 2, 1]), (6.0, [0, 1, 2])):
        bench = Bench(ctx, n_slots=1)
        bench.submit(ids(100, 1), 0)
        bench.run()
        order: list[int] = []
        told = [bench.submit(ids(9, 2), 2)]
        bench.step()
        told += [bench.submit(prompt, 2) for prompt in (ids(50, 3), ids(100, 1) + ids(9, 4))]
        bench.now = now
        order = []
        while bench.scheduler.jobs:
            bench.step()
            order += [i for i, t in enumerate(told) if t.is_over and i not in order]
        assert order == expected


# Too few cells


def test_nothing_that_fits_alone_fails(path: Path) -> None:
    """Case 52: four answers of 400 tokens in a pool of 1,024."""
    with opened(path, n_ctx=1024) as ctx:
        expected = [alone(ctx, ids(20, i), 400) for i in range(4)]
        bench = Bench(ctx)
        told = [bench.submit(ids(20, i), 400) for i in range(4)]
        bench.run()
        assert [t.end.stop_reason for t in told] == [StopReason.LIMIT] * 4
        assert 1 <= bench.scheduler.counters.n_parked <= 3, "who is parked waits until another is through"
        assert [t.answer for t in told] == expected
        assert [t.end.timings.prompt_n for t in told] == [20] * 4
        bench.assert_nothing_lost()


def test_who_is_parked_goes_on_when_another_is_through(ctx: Context) -> None:
    bench = Bench(ctx, max_chunk=64)
    short, long = bench.submit(ids(10, 1), 6), bench.submit(ids(150, 2), 3, cache_prompt=False)
    bench.step()
    bench.step()
    bench.scheduler.seats.park(bench.scheduler.jobs[1])
    while not short.is_over:
        bench.step()
        assert bench.phases()[-1] == "QUEUED"
    bench.run()
    timings = long.end.timings
    assert (long.answer, timings.cache_n, timings.prompt_n) == (alone(ctx, ids(150, 2), 3), 0, 150)


def test_idle_prefixes_go_before_anyone_is_parked(path: Path) -> None:
    with opened(path, n_ctx=512, n_slots=1) as ctx:
        bench = Bench(ctx, n_slots=1)
        for i in range(6):
            bench.submit(ids(150, i), 20)
        bench.run()
        assert (bench.scheduler.counters.n_parked, bench.tree.stats.evictions > 0) == (0, True)


def test_a_prompt_as_long_as_the_pool_is_computed(path: Path) -> None:
    """Case 23."""
    with opened(path, n_ctx=256, n_slots=1) as ctx:
        bench = Bench(ctx, n_slots=1)
        told = [bench.submit(ids(256, i), -1) for i in range(3)]
        bench.run()
        assert [(len(t.ids), t.end.stop_reason) for t in told] == [(1, StopReason.CONTEXT)] * 3


def test_a_context_shift_goes_on_and_says_so(path: Path) -> None:
    with opened(path, n_ctx=64, n_slots=2) as ctx:
        bench = Bench(ctx, n_slots=2, context_shift=True)
        told = bench.submit(ids(20, 1), 100, n_keep=4)
        other = bench.submit(ids(20, 2), 10)
        bench.run()
        assert (len(told.ids), told.end.truncated, other.end.truncated) == (100, True, False)
        assert told.ids[:40] == alone(ctx, ids(20, 1), 40)[0]
        assert other.answer == alone(ctx, ids(20, 2), 10)
        assert all(entry.n_tokens <= 64 for entry in bench.tree.entries())
        bench.assert_nothing_lost()
