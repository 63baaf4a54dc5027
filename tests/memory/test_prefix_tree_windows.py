"""Prefixes of models with a window: what a point is, what it holds, what it costs. And what an interruption leaves."""

import itertools
import sys
from collections.abc import Callable

import pytest

from llmkit.memory.block_pool import BLOCK_CELLS
from tests.engine.interrupts import Interrupter
from tests.memory.prefixes import Cache, Ids
from tests.memory.test_prefix_tree import blocks, ids

WINDOW = 64


def with_points(cache: Cache, text: Ids, points: list[int]) -> None:
    """Computes a text and records points on the way."""
    seq = cache.kv.new_sequence()
    for first, last in zip([0, *points], points, strict=False):
        cache.append(seq, text[first:last], chunk=16)
        cache.tree.insert(seq, "")
    cache.check(seq)
    cache.kv.free(seq)


def test_a_hit_is_cut_to_the_last_point() -> None:
    cache, text = Cache(window=WINDOW), ids(600, seed=1)
    with_points(cache, text, [200, 400, 600])
    found = {n: cache.tree.match(text[:n], [""]) for n in (600, 599, 550, 400, 399, 250, 201, 200, 199, 120, 10)}
    assert {n: match.n_tokens for n, match in found.items()} == {
        600: 600, 599: 599, 550: 400, 400: 400, 399: 399, 250: 200, 201: 200, 200: 200, 199: 199, 120: 0, 10: 0,
    }  # fmt: skip
    assert {n: match.n_matched for n, match in found.items()} == {n: n for n in found}
    for n, match in found.items():
        seq = cache.kv.new_sequence()
        assert cache.tree.attach(match, seq) == match.n_tokens
        cache.append(seq, [9] * 100, chunk=16)
        cache.check(seq)
        cache.kv.free(seq)
        assert cache.tree.attach(match, cache.kv.new_sequence(), n - 100) in (0, 200, 400)
    cache.check_references()


def test_what_is_attached_near_a_point_is_whole() -> None:
    """Blocks are kept as wholes, so a little before a point is one, too; from there to the token nothing may lack."""
    cache, text = Cache(window=WINDOW), ids(600, seed=1)
    with_points(cache, text, [600])
    found = []
    for n in range(540, 601):
        seq = cache.kv.new_sequence()
        found.append(cache.tree.attach(cache.tree.match(text[:n], [""]), seq))
        cache.check(seq)
        cache.kv.free(seq)
    assert found == [0] * 35 + list(range(575, 601))


def test_the_last_token_can_always_be_computed_again() -> None:
    for n, chunk in itertools.product(range(190, 226), (16, 999)):
        cache, text = Cache(window=WINDOW), ids(n, seed=n)
        cache.tree.insert(cache.computed(text, chunk), "")
        assert cache.tree.match(text[:-1], [""]).n_tokens == n - 1


def test_what_is_shorter_than_a_window_needs_no_points() -> None:
    cache, text = Cache(window=WINDOW), ids(WINDOW + 20, seed=1)
    with_points(cache, text, [len(text)])
    for n in range(1, len(text) + 1):
        assert cache.tree.match(text[:n], [""]).n_tokens == n


def test_a_point_holds_its_window_and_no_more() -> None:
    """And points near to each other hold the same blocks."""
    cache, text = Cache(n_ctx=8192, window=WINDOW), ids(5000, seed=1)
    with_points(cache, text, [1024, 2048, 3072, 4096, 5000])
    assert cache.kv.pools[0].n_used == blocks(5000)
    assert cache.kv.pools[1].n_used == 4 * 2 + blocks(5000 % BLOCK_CELLS + WINDOW)
    near = Cache(n_ctx=8192, window=WINDOW)
    with_points(near, text, list(range(40, 5000, 40)))
    assert near.kv.pools[1].n_used <= blocks(5000) + 1
    assert near.kv.pools[0].n_used <= blocks(5000) + 1


def test_a_point_is_recorded_on_a_path_that_is_there() -> None:
    """The second session has the window where the first did not stop; the other cells stay the first's."""
    cache, text = Cache(window=WINDOW), ids(500, seed=1)
    with_points(cache, text, [500])
    assert cache.tree.match(text[:300], [""]).n_tokens == 0
    n_used = cache.kv.pools[0].n_used
    with_points(cache, text[:300], [300])
    assert cache.kv.pools[0].n_used == n_used
    assert cache.tree.match(text[:300], [""]).n_tokens == 300
    cache.check_references()
    cache.check_tree()


def test_before_its_window_a_sequence_records_no_point() -> None:
    cache, text = Cache(window=WINDOW), ids(500, seed=1)
    seq = cache.computed(text, chunk=16)
    cache.tree.insert(seq, "", 300)
    assert [(entry.n_tokens, entry.is_point) for entry in cache.tree.entries()] == [(300, False)]
    assert cache.tree.match(text, [""]).n_tokens == 0
    assert cache.tree.match(text, [""]).n_matched == 300
    cache.tree.insert(seq, "")
    assert [(entry.n_tokens, entry.is_point) for entry in cache.tree.entries()] == [(300, False), (500, True)]
    cache.check_tree()


@pytest.mark.parametrize("n", [300, 320])
def test_windows_that_two_have_computed_are_stored_once(n: int) -> None:
    cache, text = Cache(window=WINDOW), ids(n, seed=1)
    first, second = cache.computed(text, chunk=16), cache.computed(text, chunk=20)
    cache.tree.insert(first, "")
    used = [pool.n_used for pool in cache.kv.pools]
    cache.tree.insert(second, "")
    assert [then - pool.n_used for then, pool in zip(used, cache.kv.pools, strict=True)] == [blocks(n), 3 - (n == 320)]
    for seq in (first, second):
        cache.append(seq, [1, 2, 3])
        cache.check(seq)


@pytest.mark.parametrize("window", [0, WINDOW])
@pytest.mark.parametrize("name", ["insert", "attach", "remove", "make_room", "clear"])
def test_an_interrupted_change_leaks_no_block(name: str, window: int) -> None:
    """Before every step of the memory's code, until it is through: what is kept may be lost, but nothing is wrong."""
    files = ("kv_cache.py", "block_pool.py", "held_blocks.py", "prefix_nodes.py", "prefix_tree.py", "radix.py")
    texts = [[*ids(70, seed=0), *ids(70, seed=i)] for i in range(3)]
    interrupted, n = True, 0
    while interrupted:
        cache = Cache(n_ctx=640, window=window)
        for text in texts[:2]:
            cache.session(text)
        seq, other = cache.computed(texts[2]), cache.kv.new_sequence()
        match = cache.tree.match(texts[0], [""])
        changes: dict[str, Callable[[], object]] = {
            "insert": lambda: cache.tree.insert(seq, ""),  # noqa: B023
            "attach": lambda: cache.tree.attach(match, other, 40),  # noqa: B023
            "remove": lambda: cache.tree.remove(cache.tree.entries()[-1].id),  # noqa: B023
            "make_room": lambda: cache.tree.make_room([14] * len(cache.windows)),  # noqa: B023
            "clear": lambda: cache.tree.clear(),  # noqa: B023
        }
        n += 7
        sys.settrace(Interrupter(n, files))
        try:
            changes[name]()
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        cache.check_references()
        cache.check_tree()
        cache.check(seq)
        cache.check(other)
        cache.session(texts[0])
    assert n > 50
