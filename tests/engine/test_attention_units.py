"""Rows of sequences that share a prefix meet its keys and values together, with the bits of each alone."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmkit.engine.context import Context
from llmkit.errors import RewindError
from llmkit.kernels.attention import SPAN, TILE
from llmkit.params import ContextParams
from tests.engine_runs import assert_same_bits, feed, load, random_ids
from tests.make_models import make_model

PREFIX = random_ids(2 * SPAN + 40, 128, 1)
SHAPES: dict[str, dict[str, Any]] = {
    "llama": dict(n_head=6, n_head_kv=2, head_dim=32),
    "gemma3": dict(),  # layers with a window, others without
    "bloom": dict(),  # ALiBi
    "gemma2": dict(),  # scores are capped
    "gpt-oss": dict(),  # sinks
}


@pytest.fixture(scope="module")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("units")

    def path(arch: str) -> Path:
        file = folder / f"{arch}.gguf"
        return file if file.exists() else make_model(file, arch=arch, n_ctx_train=2048, **SHAPES[arch])

    return path


@pytest.fixture(scope="module")
def path(path_of: Callable[[str], Path]) -> Path:
    return path_of("llama")


def context(path: Path, n_threads: int = 2, kv: str = "f16", n_seq_max: int = 12) -> Context:
    return Context(load(path), ContextParams(4096, 512, 512, n_threads, kv, kv, n_seq_max=n_seq_max))


def units_of(ctx: Context) -> list[tuple[int, list[tuple[int, int, int]]]]:
    """Of the last pass's units the span, and of each step (rows, first tile, last tile)."""
    table, steps, *_ = ctx._inputs._units
    ends = np.cumsum(table[:, 1])
    return [
        (int(unit[4]), [tuple(map(int, step[[1, 3, 4]])) for step in steps[end - unit[1] : end]])
        for unit, end in zip(table, ends, strict=True)
    ]  # type: ignore[misc]


def tiles_read(ctx: Context) -> int:
    """How many tiles of keys and values the last pass read in each layer without a window."""
    return sum(last - first for _, steps in units_of(ctx) for _, first, last in steps)


def alone(path: Path, ids: list[int], kv: str = "f16", n: int = 1) -> Any:
    """Logits of the last n tokens, in a context where nobody else is; all before them is fed at once."""
    with context(path, 1, kv) as ctx:
        seq = ctx.new_sequence()
        feed(ctx, [(seq, ids[:-n])], "none")
        return feed(ctx, [(seq, ids[-n:])])


def share(ctx: Context, lengths: list[int]) -> list[list[int]]:
    """Sequence i has the first lengths[i] tokens of sequence 0's; what each holds."""
    feed(ctx, [(ctx.memory.sequence(0), PREFIX)], "none")
    for i, n in enumerate(lengths[1:], 1):
        ctx.memory.seq_cp(0, i, 0, n)
    return [PREFIX[:n] for n in lengths]


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize(("arch", "kv"), [*((arch, "f16") for arch in SHAPES), ("llama", "q8_0"), ("llama", "q4_0")])
def test_sequences_with_one_prefix(path_of: Callable[[str], Path], arch: str, kv: str, n_threads: int) -> None:
    """Seven that go different ways from the same place, over several steps; then each against itself alone."""
    path = path_of(arch)
    with context(path, n_threads, kv) as ctx:
        texts = share(ctx, [len(PREFIX)] * 7)
        for step in range(3):
            tokens = random_ids(7, 128, 10 + step)
            texts = [[*text, token] for text, token in zip(texts, tokens, strict=True)]
            rows = feed(ctx, [(ctx.memory.sequence(i), [token]) for i, token in enumerate(tokens)])
        n_shared = len(PREFIX) // TILE
        assert tiles_read(ctx) == n_shared + 7
    for i, text in enumerate(texts):
        assert_same_bits(rows[i : i + 1], alone(path, text, kv), f"sequence {i}")


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_tails_of_many_tokens(path_of: Callable[[str], Path], arch: str, n_threads: int) -> None:
    """Ten clients bring what follows a prefix that none of them computes: read once for as many rows as fit a unit."""
    path = path_of(arch)
    n_tail = [1, 20, 7, 33, 2, 16, 1, 40, 5, 12]
    with context(path, n_threads) as ctx:
        share(ctx, [len(PREFIX)] * 10)
        tails = [random_ids(n, 128, 30 + i) for i, n in enumerate(n_tail)]
        order = list(np.random.default_rng(1).permutation(10))
        rows = feed(ctx, [(ctx.memory.sequence(int(i)), tails[i]) for i in order])
        n_units = -(-sum(n_tail) // ctx._attention.sizes.n_rows)
        own = sum(-(-(len(PREFIX) + n) // TILE) - len(PREFIX) // TILE for n in n_tail)
        assert tiles_read(ctx) <= n_units * (len(PREFIX) // TILE) + 3 * own
    start = 0
    for i in order:
        n = n_tail[i]
        assert_same_bits(rows[start : start + n], alone(path, PREFIX + tails[i], n=n), f"sequence {i}")
        start += n


def test_a_tree(path: Path) -> None:
    """All share 200 tokens, two of them 500, three others 500 of their own, in any order in the batch: what each pair
    shares is read once, and nothing is taken for shared that is not."""
    with context(path) as ctx:
        memory = ctx.memory
        feed(ctx, [(memory.sequence(0), PREFIX[:500])], "none")
        memory.seq_cp(0, 1)
        memory.seq_cp(0, 2, 0, 200)
        texts = [PREFIX[:500], PREFIX[:500], PREFIX[:200] + random_ids(300, 128, 7)]
        feed(ctx, [(memory.sequence(2), texts[2][200:])], "none")
        for i in (3, 4):
            memory.seq_cp(2, i)
            texts.append(texts[2])
        order = [3, 0, 2, 1, 4]
        rows = feed(ctx, [(memory.sequence(i), [i]) for i in order])
        steps = sorted((step for _, unit in units_of(ctx) for step in unit), key=lambda step: (step[1], step[0]))
        covered = {n: sum(last - first for rows, first, last in steps if rows == n) for n in (5, 3, 2, 1)}
        assert covered == {5: 200 // TILE, 3: 500 // TILE - 200 // TILE, 2: 500 // TILE - 200 // TILE, 1: 5}
    for row, i in zip(rows, order, strict=True):
        assert_same_bits(row[None], alone(path, [*texts[i], i]), f"sequence {i}")


def test_two_tokens_of_one_sequence_share_with_each_other(path: Path) -> None:
    with context(path) as ctx:
        seq = ctx.memory.sequence(0)
        feed(ctx, [(seq, PREFIX)], "none")
        rows = feed(ctx, [(seq, [3]), (seq, [4])])
        assert tiles_read(ctx) == -(-(len(PREFIX) + 2) // TILE)
    assert_same_bits(rows[1:], alone(path, [*PREFIX, 3, 4]), "the second")


def test_what_shares_little_is_met_apart(path: Path) -> None:
    """Two sequences of 552 tokens that share 40: units of their own for more threads' sake."""
    with context(path) as ctx:
        share(ctx, [len(PREFIX), 40])
        feed(ctx, [(ctx.memory.sequence(1), random_ids(512, 128, 3))], "none")
        feed(ctx, [(ctx.memory.sequence(i), [i]) for i in range(2)])
        assert all(rows == 1 for _, unit in units_of(ctx) for rows, _, _ in unit)


def test_no_thread_has_more_than_its_part(path: Path) -> None:
    """Where a unit would be more than a quarter of a thread's work, it is split into spans, the largest first."""
    with context(path, n_threads=2) as ctx:
        share(ctx, [len(PREFIX)] * 8)
        feed(ctx, [(ctx.memory.sequence(i), [i]) for i in range(8)])
        assert [span for span, _ in units_of(ctx)][:2] == [0, 1]
        work = [sum(rows * (last - first) for rows, first, last in unit) for _, unit in units_of(ctx)]
        assert all(a >= b for a, b in pairwise(work))
    with context(path, n_threads=1) as ctx:
        share(ctx, [len(PREFIX)] * 8)
        feed(ctx, [(ctx.memory.sequence(i), [i]) for i in range(8)])
        assert [span for span, _ in units_of(ctx)] == [-1]


def test_nothing_is_read_that_is_not_there(path: Path) -> None:
    """Partial results that no unit has written would show."""
    with context(path) as ctx:
        share(ctx, [len(PREFIX)] * 5)
        step = [(ctx.memory.sequence(i), [i]) for i in range(5)]
        feed(ctx, step)
        ctx._inputs._partials[:] = np.nan
        assert np.isfinite(feed(ctx, step)).all()


def test_a_sequence_that_changes_is_looked_at_anew(path: Path) -> None:
    """What was shared in the last batch is not any more: cut back, and fed with other tokens, twice."""
    with context(path) as ctx:
        memory = ctx.memory
        texts = share(ctx, [len(PREFIX)] * 3)
        feed(ctx, [(memory.sequence(i), [i]) for i in range(3)])
        texts = [[*text, i] for i, text in enumerate(texts)]
        for cut in (300, 100):
            memory.seq_rm(1, cut, -1)
            again = random_ids(len(texts[1]) - cut, 128, cut)
            texts[1] = texts[1][:cut] + again
            feed(ctx, [(memory.sequence(1), again)], "none")
            rows = feed(ctx, [(memory.sequence(i), [5 + i]) for i in range(3)])
            texts = [[*text, 5 + i] for i, text in enumerate(texts)]
            for i, text in enumerate(texts):
                assert_same_bits(rows[i : i + 1], alone(path, text), f"sequence {i} after {cut}")


# -- random trees -------------------------------------------------------------------------------------------------

GROW = st.tuples(st.integers(0, 5), st.integers(1, 300), st.integers(1, 40))  # of whom, how much, own tokens
BATCH = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 30)), min_size=1, max_size=8)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "bloom"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(grown=st.lists(GROW, min_size=1, max_size=7), batches=st.lists(BATCH, min_size=1, max_size=3), data=st.data())
def test_random_trees(path_of: Callable[[str], Path], arch: str, grown: Any, batches: Any, data: st.DataObject) -> None:
    """Each sequence begins as a piece of one before it; batches of any of them in any order, of any lengths."""
    n_threads = data.draw(st.integers(1, 3))
    with context(path_of(arch), n_threads, n_seq_max=20) as ctx:
        memory = ctx.memory
        feed(ctx, [(memory.sequence(0), PREFIX[:530])], "none")
        for i, (parent, n, n_own) in enumerate(grown, 1):
            n = min(3 * n, memory.sequence(parent % i).n_tokens)
            try:
                memory.seq_cp(parent % i, i, 0, n)
            except RewindError:  # a window has dropped what would be seen from there
                memory.seq_cp(parent % i, i)
            feed(ctx, [(memory.sequence(i), random_ids(n_own, 128, i))], "none")
        for number, batch in enumerate(batches):
            wanted = {i % (len(grown) + 1): random_ids(n, 128, 50 + number) for i, n in batch}
            want = []
            for i, ids in wanted.items():
                memory.seq_cp(i, 19)
                want.append(feed(ctx, [(memory.sequence(19), ids)]))
                memory.seq_rm(19)
            got = feed(ctx, [(memory.sequence(i), ids) for i, ids in wanted.items()])
            assert_same_bits(got, np.concatenate(want), f"batch {number}")


# -- real models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "n_prefix"), [("smollm2-135m", 330), ("gemma-3-270m", 590)])
def test_real_models(real_model: Callable[[str], Path], name: str, n_prefix: int) -> None:
    """Shared against private copies, tails of prompts and single tokens, all logits; gemma has dropped some cells."""
    n_tail, order = [1, 12, 5], (2, 0, 1)
    with Context(load(real_model(name)), ContextParams(4096, 512, 512, 2, n_seq_max=9)) as ctx:
        n_vocab, memory = ctx.model.config.n_vocab, ctx.memory
        ids = random_ids(n_prefix, n_vocab, 1)
        feed(ctx, [(memory.sequence(0), ids)], "none")
        for i in range(1, 3):
            memory.seq_cp(0, i)
        tails = [random_ids(n, n_vocab, 30 + i) for i, n in enumerate(n_tail)]
        got = [feed(ctx, [(memory.sequence(i), tails[i]) for i in order])]
        got.append(feed(ctx, [(memory.sequence(i), [100 + i]) for i in order]))
        want = [list[Any](), list[Any]()]
        for i in order:
            private = memory.sequence(4)
            feed(ctx, [(private, ids)], "none")
            want[0].append(feed(ctx, [(private, tails[i])]))
            want[1].append(feed(ctx, [(private, [100 + i])]))
            memory.seq_rm(4)
    for what, rows, wanted in zip(("tails", "single tokens"), got, want, strict=True):
        assert_same_bits(rows, np.concatenate(wanted), what)
