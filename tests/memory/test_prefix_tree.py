"""The prefix tree without a model: what is found, what it costs, what stays."""

import numpy as np
import pytest

from llmkit.errors import UsageError
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import ROTATED, Chain
from llmkit.memory.leaving_order import LeavingOrder
from llmkit.memory.radix import Node
from tests.memory.prefixes import Cache, Ids


def ids(n: int, seed: int, n_vocab: int = 50_000) -> Ids:
    return [int(i) for i in np.random.default_rng(seed).integers(0, n_vocab, n)]


def blocks(n: int) -> int:
    return -(-n // BLOCK_CELLS)


def test_what_was_inserted_is_found_token_for_token() -> None:
    cache = Cache()
    text = ids(100, seed=1)
    cache.session(text)
    for n in (1, 31, 32, 33, 64, 99, 100):
        assert cache.tree.match(text[:n], [""]).n_tokens == n
        assert cache.tree.match([*text[:n], 50_001], [""]).n_tokens == n
    assert cache.tree.match([*text, 1, 2], [""]).n_tokens == 100
    assert cache.tree.match([50_001, *text], [""]).n_tokens == 0
    assert cache.tree.match([], [""]).n_tokens == 0
    cache.check_references()
    cache.check_tree()


@pytest.mark.parametrize("n_shared", [512, 500])
def test_sessions_over_one_prefix_share_it(n_shared: int) -> None:
    """Its own tokens, rounded up to a block; and where the prefix ends within one, that beginning once more each."""
    cache, n_sessions, n_own = Cache(n_cells=200_000), 2000, 64
    prefix = ids(n_shared, seed=0)
    cache.session(prefix)
    for i in range(n_sessions):
        n = cache.session([*prefix, 60_000 + i, *ids(n_own - 25, seed=i)], answer=ids(24, seed=-i - 1 + 10**6))
        assert n == n_shared
    rest = n_shared % BLOCK_CELLS
    n_blocks = blocks(n_shared) + n_sessions * blocks(rest + n_own) - (rest > 0)
    assert cache.kv.pool.n_used == n_blocks
    cache.check_references()
    assert len(cache.tree.entries()) <= 1 + 2 * n_sessions
    seq = cache.kv.new_sequence()
    assert cache.tree.attach(cache.tree.match([*prefix, 60_007, *ids(39, seed=7)], [""]), seq) == n_shared + 40
    cache.check(seq)


def test_unknown_ids() -> None:
    cache = Cache()
    for wrong in (cache.tree.pin, cache.tree.unpin, cache.tree.remove):
        with pytest.raises(UsageError, match="7"):
            wrong(7)
    for tokens in ([[1]], ["a"], [-1], [2**31], np.array([1.5])):
        with pytest.raises(UsageError):
            cache.tree.match(tokens, [""])  # type: ignore[arg-type]


# -- who leaves -------------------------------------------------------------------------------------------------------


def room_for(cache: Cache, n_tokens: int) -> bool:
    return cache.tree.make_room([blocks(n_tokens) + 1] * len(cache.windows))


def one_shot(cache: Cache, number: int, n: int = 40) -> None:
    """A prompt that nobody asks again; all begin with the same token, as prompts do."""
    assert room_for(cache, n)
    cache.session([1, 1000 + number, *[number % 7] * (n - 2)])


def test_prompts_that_are_used_once_do_not_push_out_what_is_used_again() -> None:
    cache, hot = Cache(n_cells=64 * BLOCK_CELLS), ids(512, seed=3)
    for i in range(2):
        cache.session([*hot, 60_000 + i])
    for i in range(20_000):
        one_shot(cache, i)
        if i % 400 == 0:  # far less often than the memory is filled anew
            room_for(cache, 600)
            assert cache.session([*hot, i, i + 1]) == 512
    assert len(cache.tree.entries()) <= 2 * 64
    assert len(cache.tree._order._heap) < 2048
    cache.check_references()


def test_what_was_used_again_long_ago_stands_in_line_again() -> None:
    order, root = LeavingOrder(100), Node("", None, 0, b"", Chain((), (0,)), 0)
    nodes = {name: Node("", root, 0, b"", Chain((), (0,)), id) for id, name in enumerate("abcde", 1)}
    for name in "abcd":
        order.resize(nodes[name], 40)
        order.use(nodes[name])
    for name in "abc":  # two of these may be protected
        order.use_again(nodes[name])
    order.use(nodes["e"])
    left = [order.pop() for _ in range(6)]
    names = {id(node): name for name, node in nodes.items()}
    assert "".join(names.get(id(node), "-") for node in left) == "daebc-"  # not protected any more, behind d


def test_memory_is_taken_over_by_what_is_used_now() -> None:
    cache = Cache(n_cells=64 * BLOCK_CELLS)
    old, new = ([ids(128, seed=i) for i in range(first, first + 12)] for first in (0, 100))
    for texts in (old, new):
        for _ in range(3):
            for text in texts:
                room_for(cache, 160)
                cache.session([*text, 9, 9])
    assert sum(cache.tree.match(text, [""]).n_tokens == 128 for text in new) >= 10
    assert sum(cache.tree.match(text, [""]).n_tokens == 128 for text in old) < 6


def test_lower_priority_leaves_first_and_pinned_stays() -> None:
    cache = Cache(n_cells=16 * BLOCK_CELLS)
    texts = {name: ids(64, seed=i) for i, name in enumerate(["pinned", "low", "high", "old", "new"])}
    for name, text in texts.items():
        seq = cache.computed(text)
        id = cache.tree.insert(seq, "", priority={"low": -1, "high": 1}.get(name, 0))
        if name == "pinned":
            cache.tree.pin(id)
        cache.kv.free(seq)

    def left() -> set[str]:
        return {name for name, text in texts.items() if cache.tree.match(text, [""]).n_tokens == 64}

    gone = []
    for n in (6, 8, 10, 12, 14):
        before = left()
        cache.tree.make_room([n])
        gone.append(before - left())
    assert gone == [set(), {"low"}, {"old"}, {"new"}, {"high"}]
    assert not cache.tree.make_room([15])
    assert left() == {"pinned"}
    cache.tree.unpin(cache.tree.entries()[0].id)
    assert cache.tree.make_room([16])
    assert cache.tree.n_bytes == 0


def test_what_is_in_use_stays_and_nothing_leaves_in_vain() -> None:
    cache = Cache(n_cells=8 * BLOCK_CELLS)
    seq, other = cache.computed(ids(64, seed=1)), cache.computed(ids(64, seed=2))
    for one in (seq, other):
        cache.tree.insert(one, "")
    cache.kv.free(other)
    assert not cache.tree.make_room([7])  # two blocks are in use
    assert len(cache.tree.entries()) == 2
    assert cache.tree.make_room([6])
    assert [entry.n_sharers for entry in cache.tree.entries()] == [1]
    cache.check(seq)


def test_a_long_path_leaves_from_its_end() -> None:
    cache, text = Cache(n_cells=16 * BLOCK_CELLS), ids(320, seed=1)
    seq = cache.kv.new_sequence()
    for first in range(0, 320, 64):
        cache.append(seq, text[first : first + 64])
        cache.tree.insert(seq, "")
    cache.kv.free(seq)
    found = []
    for n in (7, 9, 14, 16):
        assert cache.tree.make_room([n])
        found.append(cache.tree.match(text, [""]).n_tokens)
    assert found == [256, 192, 64, 0]


@pytest.mark.parametrize("window", [0, 64])
def test_a_budget(window: int) -> None:
    """Entries of 4, 4, 4 and 12 parts of a budget of 10: the oldest makes room for the third, the last does not fit."""
    cache = Cache(window=window)
    block = sum(pool.block_bytes for pool in cache.kv.pools)
    sizes = [4, 4, 4, 12]
    cache.tree.max_bytes = 10 * 2 * block + 3 * 8192
    kept = []
    for i, size in enumerate(sizes):
        seq = cache.computed(ids(size * 64, seed=i), chunk=64)
        kept.append(cache.tree.insert(seq, "") > 0)
        cache.kv.free(seq)
        assert cache.tree.n_bytes <= cache.tree.max_bytes
        cache.check_references()
    n_left = [cache.tree.match(ids(size * 64, seed=i), [""]).n_tokens for i, size in enumerate(sizes)]
    if window:  # of what is behind a window only the layers that see everything count
        assert kept == [True] * 4
    else:
        assert (kept, n_left) == ([True, True, True, False], [0, 256, 256, 0])
        assert (cache.tree.stats.skipped, cache.tree.stats.evictions) == (1, 1)


def test_an_entry_that_is_pinned_is_no_room_for_another() -> None:
    cache = Cache(max_bytes=100_000)
    seq = cache.computed(ids(256, seed=1))
    cache.tree.max_bytes = cache.kv.pool.block_bytes * 8 + 40_000
    cache.tree.pin(cache.tree.insert(seq, ""))
    other = cache.computed(ids(256, seed=2))
    assert cache.tree.insert(other, "") == 0
    assert cache.tree.stats.skipped == 1
    assert len(cache.tree.entries()) == 1


# -- how it is shared -------------------------------------------------------------------------------------------------


def test_nothing_is_found_through_another_namespace() -> None:
    cache, text = Cache(), ids(100, seed=1)
    cache.session(text, "x")
    assert [cache.tree.match(text, [name]).n_tokens for name in ("y", "x", "", "x\0")] == [0, 100, 0, 0]
    assert cache.session(text, "y") == 0
    assert cache.session(text, "y") == 99
    cache.session(text[:60], "public")
    cache.tree.clear("y")
    match = cache.tree.match(text, ["y", "public"])
    assert (match.n_tokens, match.namespace) == (60, "public")
    assert cache.tree.match(text, ["x", "public"]).namespace == "x"
    assert cache.tree.match(text, []).n_tokens == 0
    assert [entry.namespace for entry in cache.tree.entries()] == ["x", "public"]


def test_a_public_prefix_is_not_stored_again_for_each_namespace() -> None:
    cache, text = Cache(), ids(256, seed=1)
    cache.session(text, "public")
    for name in "abcdefgh":
        seq = cache.kv.new_sequence()
        assert cache.tree.attach(cache.tree.match(text, [name, "public"]), seq) == 256
        cache.append(seq, ids(32, seed=ord(name)))
        cache.tree.insert(seq, name)
        cache.kv.free(seq)
    assert cache.kv.pool.n_used == 8 + 8
    cache.tree.clear("public")
    assert all(cache.tree.match(text, [name]).n_tokens == 256 for name in "abcdefgh")
    cache.check_references()


def test_what_two_have_computed_is_stored_once() -> None:
    cache, text = Cache(), ids(200, seed=1)
    first, second = cache.computed(text), cache.computed(text)
    cache.append(second, [1, 2, 3])
    n_alone = cache.kv.pool.n_used
    id = cache.tree.insert(first, "")
    cache.tree.insert(second, "", 200)  # the whole blocks that it shares
    assert cache.kv.pool.n_used == n_alone - 6
    assert len({cell // BLOCK_CELLS for cell in second.cells[192:].tolist()}) == 1  # a tile stays in one block
    third = cache.computed(text)
    assert cache.tree.insert(third, "") == id
    assert third.cells.tolist() == first.cells.tolist()
    assert cache.kv.pool.n_used == n_alone - 6
    for seq in (first, second, third):
        cache.append(seq, [5, 6])
        cache.check(seq)
    cache.check_references()


def test_an_answer_takes_over_the_block_that_the_prompt_has_begun() -> None:
    cache, text = Cache(), ids(40, seed=1)
    cache.session(text, answer=ids(40, seed=2))
    assert cache.kv.pool.n_used == 3
    assert cache.tree.match(text, [""]).n_tokens == 40
    assert len(cache.tree.entries()) == 2
    cache.check_tree()


def test_a_prefix_is_as_much_used_as_was_shared_of_it() -> None:
    """Only what several begin with is protected, not the rest of whoever came first."""
    cache = Cache(n_cells=64 * BLOCK_CELLS)
    system = ids(64, seed=0)
    cache.session([*system, *ids(100, seed=1)])
    cache.session([*system, *ids(100, seed=2)])
    by_size = sorted((entry.n_tokens, entry.hits) for entry in cache.tree.entries())
    assert by_size == [(64, 1), (164, 0), (164, 0)]


def test_lookups_take_as_many_steps_with_many_sessions_as_with_few() -> None:
    cache, text = Cache(n_cells=100_000), ids(300, seed=0)
    n_nodes = []
    cache.session([*text, 70_000, 6])
    for i in range(900):
        cache.session([*text[: 1 + i % 10 * 30], 60_000 + i, 5])  # parting at ten places
        if i in (9, 899):
            node, _, _ = cache.tree._nodes.find("", np.array([*text, 70_000], np.int32).tobytes())
            n_nodes.append(len(node.path()) if node else 0)
    assert n_nodes[0] == n_nodes[1] <= 12
    for entry in cache.tree.entries():
        if cache.paths("")[entry.id][-1] == 5:
            cache.tree.remove(entry.id)
    assert len(cache.tree.entries()) == 1  # what parted no longer is joined
    cache.check_references()
    cache.check_tree()


def test_an_entry_keeps_its_id_while_it_is_there() -> None:
    cache, text = Cache(), ids(64, seed=1)
    seq = cache.computed(text)
    id = cache.tree.insert(seq, "")
    for end in (1, 2):
        cache.session([*text, end])
    cache.tree.remove(next(entry.id for entry in cache.tree.entries() if cache.paths("")[entry.id][-1] == 1))
    assert [(entry.id == id, entry.n_tokens) for entry in cache.tree.entries()] == [(True, 64), (False, 65)]
    assert cache.tree.insert(seq, "") == id


def test_tokens_that_moved_are_no_prefix() -> None:
    cache, text = Cache(), ids(128, seed=1)
    seq = cache.memory.sequence(0)
    cache.append(seq, text)
    cache.memory.seq_rm(0, 32, 64)
    cache.memory.seq_add(0, 64, -1, -32)
    cache.memory.settle(seq)  # positions, keys and places are now as if nothing had happened
    assert (seq.positions == seq.chain.column(ROTATED)).all()
    assert seq.chain.turned
    cache.append(seq, [1, 2])
    id = cache.tree.insert(seq, "")
    assert [(entry.id, entry.n_tokens) for entry in cache.tree.entries()] == [(id, 32)]
    cache.memory.seq_rm(0)
    cache.append(seq, text)
    cache.tree.insert(seq, "")
    assert cache.tree.match(text, [""]).n_tokens == 128
    cache.check_tree()


def test_operations_on_sequences_leave_the_tree_alone() -> None:
    cache, text = Cache(), ids(100, seed=1)
    seq = cache.memory.sequence(0)
    cache.append(seq, text)
    cache.tree.insert(seq, "")
    for change in (
        lambda: cache.memory.seq_add(0, 10, -1, 5),
        lambda: cache.memory.seq_div(0, 0, -1, 2),
        lambda: cache.memory.seq_rm(0, 20, 40),
        lambda: cache.append(seq, ids(50, seed=2)),
        lambda: cache.memory.seq_keep(7),
        lambda: cache.memory.seq_rm(-1),
        cache.memory.clear,
        cache.kv.recount,
        lambda: cache.kv.free(seq),
    ):
        change()
        cache.check_references()
        cache.check_tree()
        assert cache.tree.match(text, [""]).n_tokens == 100


def test_a_match_that_is_out_of_date() -> None:
    cache, text = Cache(), ids(100, seed=1)
    cache.session(text)
    match = cache.tree.match(text, [""])
    cache.session([*text[:50], 7])
    seq = cache.kv.new_sequence()
    assert cache.tree.attach(match, seq, 70) == 70
    cache.kv.free(seq)
    cache.tree.clear()
    seq = cache.kv.new_sequence()
    assert cache.tree.attach(match, seq) == 0
    assert (cache.tree.stats.hits, cache.tree.stats.misses) == (2, 2)
