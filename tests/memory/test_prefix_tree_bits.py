"""A reused prefix gives the bits that computing it gives: shared, found again after it left, cut to a point."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import engine_runs as runs
from tests.make_models import make_model

runs.need_engine()

from llmkit.engine.batch import Segment  # noqa: E402
from llmkit.engine.context import Context  # noqa: E402
from llmkit.memory.prefix_tree import PrefixTree  # noqa: E402
from llmkit.params import ContextParams  # noqa: E402

N_VOCAB, N_CTX = 128, 512


@dataclass(frozen=True)
class Case:
    arch: str
    kv: str = "f16"
    window: int = 0


CASES = [Case("llama"), Case("gemma3", window=48), Case("llama", kv="q8_0"), Case("gemma3", "q8_0/f16", window=40)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case.arch}-{case.kv.replace('/', '-')}")
def case(request: pytest.FixtureRequest) -> Case:
    assert isinstance(request.param, Case)
    return request.param


@pytest.fixture(scope="module")
def path(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes: dict[str, Any] = dict(n_embd=64, head_dim=64, n_head=2, n_head_kv=1, n_ctx_train=4096)
    return make_model(
        tmp_path_factory.mktemp("bits") / "m.gguf",
        arch=case.arch, window=case.window or 32, window_pattern=(1, 0), **sizes,
    )  # fmt: skip


@pytest.fixture
def ctx(case: Case, path: Path) -> Iterator[Context]:
    with runs.context(path, kv=case.kv, n_ctx=N_CTX, n_ubatch=48, seed=1) as ctx:
        yield ctx


@pytest.fixture
def private(case: Case, path: Path) -> Iterator[Callable[[list[int]], Any]]:
    """Logits of all tokens of a text, computed alone with all keys and values kept."""
    with runs.context(path, n_threads=1, kv=case.kv, n_ctx=N_CTX, swa_full=True) as ctx:
        yield lambda ids: runs.prefill(ctx, ids, 512)


def serve(ctx: Context, tree: PrefixTree, ids: list[int], chunk: int, points: range = range(0)) -> tuple[int, Any]:
    """Computes what is not there of a text; how many tokens were, and the logits of the others."""
    seq = ctx.new_sequence()
    n_past = tree.attach(tree.match(ids[:-1], ["", "public"]), seq)
    rows, n = [], n_past
    while n < len(ids):
        stop = min([len(ids), n + chunk, *[point for point in points if point > n]])
        n_blocks = [(stop - n) // 32 + 2] * len(ctx.kv.pools)
        assert tree.make_room(n_blocks)
        rows.append(np.array(ctx.decode([Segment(seq, ids[n:stop], "all")])))
        n = stop
        if n in points or n == len(ids):
            tree.insert(seq, "")
    ctx.free_sequence(seq)
    return n_past, np.concatenate(rows)


def references(ctx: Context, tree: PrefixTree) -> None:
    for k, pool in enumerate(ctx.kv.pools):
        counted = tree.count(k).copy()
        for seq in ctx.kv.sequences:
            counted[seq.chain.blocks(k)] += 1
        assert (pool.n_refs_of(np.arange(pool.n_blocks)) == counted).all()


def test_random_sessions_give_the_bits_of_private_ones(ctx: Context, private: Any) -> None:
    """Texts that part anywhere, in a memory that holds few of them."""
    tree, rng = PrefixTree(ctx.kv), np.random.default_rng(2)
    known: dict[tuple[int, ...], Any] = {}
    texts = [runs.random_ids(100, N_VOCAB, seed) for seed in range(4)]
    for i in range(60):
        base = texts[int(rng.integers(4))]
        ids = base[: int(rng.integers(1, 100))] + runs.random_ids(int(rng.integers(0, 80)), N_VOCAB, i % 9)
        n_past, rows = serve(ctx, tree, ids, int(rng.integers(1, 70)), range(0, 500, 24) if i % 2 else range(0))
        want = known.setdefault(tuple(ids), private(ids))
        runs.assert_same_bits(rows, want[n_past:], f"session {i} behind {n_past}")
        if rng.random() < 0.3:
            tree.make_room([int(rng.integers(1, 16))] * len(ctx.kv.pools))
        references(ctx, tree)
    assert tree.stats.tokens_hit > 900
    assert tree.stats.evictions > 10


def test_evicted_and_computed_again_is_as_kept(ctx: Context) -> None:
    tree, ids = PrefixTree(ctx.kv), runs.random_ids(200, N_VOCAB, 5)
    _, first = serve(ctx, tree, ids, 64)
    n_kept, kept = serve(ctx, tree, [*ids, 1, 2, 3], 64)
    assert tree.make_room([pool.n_blocks for pool in ctx.kv.pools])
    n_again, again = serve(ctx, tree, [*ids, 1, 2, 3], 31)
    assert (n_kept, n_again) == (200, 0)
    runs.assert_same_bits(again[200:], kept, "computed again")
    runs.assert_same_bits(again[:200], first, "from the start")


def test_the_last_token_can_always_be_computed_again(ctx: Context, private: Any) -> None:
    """Whatever its place in a block: a prompt that is asked again costs one token."""
    tree = PrefixTree(ctx.kv)
    for n in (95, 96, 97, 111, 112, 113, 128):
        ids = runs.random_ids(n, N_VOCAB, n)
        serve(ctx, tree, ids, 64)
        n_past, rows = serve(ctx, tree, ids, 64)
        assert n_past == n - 1
        runs.assert_same_bits(rows, private(ids)[-1:], f"{n} tokens")
        tree.clear()


def test_sessions_that_computed_the_same_at_once_go_on_in_the_same_cells(ctx: Context, private: Any) -> None:
    tree, ids = PrefixTree(ctx.kv), runs.random_ids(120, N_VOCAB, 3)
    sequences = [ctx.new_sequence() for _ in range(3)]
    for first in range(0, 120, 40):
        ctx.decode([Segment(seq, ids[first : first + 40], "none") for seq in sequences])
    before = ctx.kv.pool.n_used
    for seq in sequences:
        tree.insert(seq, "")
    assert before - ctx.kv.pool.n_used == 2 * 4
    tails = [[i, 7, 9] for i in range(3)]
    rows = np.array(ctx.decode([Segment(seq, tail, "all") for seq, tail in zip(sequences, tails, strict=True)]))
    for i, tail in enumerate(tails):
        runs.assert_same_bits(rows[3 * i : 3 * i + 3], private([*ids, *tail])[-3:], f"session {i}")
    references(ctx, tree)


def test_a_hit_is_cut_to_a_point_whose_window_is_complete(case: Case, ctx: Context, private: Any) -> None:
    tree, ids = PrefixTree(ctx.kv), runs.random_ids(300, N_VOCAB, 4)
    serve(ctx, tree, ids, 48, range(100, 300, 100))
    for n, point in ((300, 300), (299, 299), (250, 200), (200, 200), (199, 199), (150, 100), (60, 0)):
        match = tree.match([*ids[:n], 127, 126], [""])
        assert match.n_matched >= n
        if case.window:
            assert match.n_tokens == point
        else:
            assert match.n_tokens == match.n_matched
    n_past, rows = serve(ctx, tree, [*ids[:250], 1, 2], 64)
    assert n_past == (200 if case.window else 250)
    runs.assert_same_bits(rows, private([*ids[:250], 1, 2])[n_past:], "behind the point")


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-270m"])
def test_a_real_model(name: str, real_model: Callable[[str], Path]) -> None:
    """Another's prompt of 600 tokens, longer than gemma's window, then 4 of its own; and greedy choices behind."""
    params = ContextParams(n_ctx=2048, n_threads=2)
    ids = runs.random_ids(600, 40_000, 1)
    tails = [[10 + i, 20, 30, 40] for i in range(3)]
    with Context(runs.load(real_model(name)), params) as ctx:
        tree = PrefixTree(ctx.kv)
        alone = ctx.new_sequence()
        ctx.decode([Segment(alone, ids, "none")])
        want = [np.array(ctx.decode([Segment(alone, tails[0], "all")]))]
        want += [greedy(ctx, alone, want[0][-1], 3)]
        serve_none(ctx, tree, ids)
        tree.insert(alone, "another")
        sequences = [ctx.new_sequence() for _ in tails]
        for seq, tail in zip(sequences, tails, strict=True):
            assert tree.attach(tree.match([*ids, *tail[:-1]], [""]), seq) == 600
        rows = np.array(ctx.decode([Segment(s, tail, "all") for s, tail in zip(sequences, tails, strict=True)]))
        runs.assert_same_bits(rows[:4], want[0], "shared")
        runs.assert_same_bits(greedy(ctx, sequences[0], rows[3], 3), want[1], "greedy")
        references(ctx, tree)


def serve_none(ctx: Context, tree: PrefixTree, ids: list[int]) -> None:
    """As another session computes it: in other chunks."""
    seq = ctx.new_sequence()
    for first in range(0, len(ids), 130):
        ctx.decode([Segment(seq, ids[first : first + 130], "none")])
    tree.insert(seq, "")
    ctx.free_sequence(seq)


def greedy(ctx: Context, seq: Any, last: Any, n: int) -> Any:
    """Logits behind each of n tokens, chosen greedily."""
    rows = []
    for _ in range(n):
        last = np.array(ctx.decode([Segment(seq, [int(last.argmax())], "last")]))[0]
        rows.append(last)
    return np.array(rows)
