"""Single tokens of sequences that share a prefix meet its keys and values together, with the bits of each alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.engine.attention_units import UnitSizes
from llmkit.engine.context import Context
from llmkit.kernels.attention import SPAN, UNIT_FIELDS
from llmkit.params import ContextParams
from tests.engine_runs import assert_same_bits, feed, load, random_ids
from tests.make_models import make_model

PREFIX = random_ids(2 * SPAN + 40, 128, 1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("units") / "m.gguf", n_head=6, n_head_kv=2, head_dim=32, n_ctx_train=2048)


def context(path: Path, n_threads: int = 2, kv: str = "f16") -> Context:
    return Context(load(path), ContextParams(2048, 512, 512, n_threads, kv, kv, n_seq_max=9))


def units_of(ctx: Context) -> list[dict[str, int]]:
    """The units of the last pass."""
    return [dict(zip(UNIT_FIELDS, unit, strict=True)) for unit in ctx._inputs._units.tolist()]


def alone(path: Path, ids: list[int], kv: str = "f16") -> Any:
    with context(path, 1, kv) as ctx:
        seq = ctx.new_sequence()
        feed(ctx, [(seq, ids[:-1])], "none")
        return feed(ctx, [(seq, ids[-1:])])


def share(ctx: Context, lengths: list[int]) -> list[list[int]]:
    """Sequence i has the first lengths[i] tokens of sequence 0's; what each holds."""
    feed(ctx, [(ctx.memory.sequence(0), PREFIX)], "none")
    for i, n in enumerate(lengths[1:], 1):
        ctx.memory.seq_cp(0, i, 0, n)
    return [PREFIX[:n] for n in lengths]


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_sequences_with_one_prefix(path: Path, n_threads: int, kv: str) -> None:
    """Seven that go different ways from the same place, over several steps; then each against itself alone."""
    with context(path, n_threads, kv) as ctx:
        texts = share(ctx, [len(PREFIX)] * 7)
        for step in range(3):
            tokens = random_ids(7, 128, 10 + step)
            texts = [[*text, token] for text, token in zip(texts, tokens, strict=True)]
            rows = feed(ctx, [(ctx.memory.sequence(i), [token]) for i, token in enumerate(tokens)])
        units = units_of(ctx)
    assert [(u["span"], u["n_rows"]) for u in units] == [(0, 7), (1, 7), *[(2, 1)] * 7]
    for i, text in enumerate(texts):
        assert_same_bits(rows[i : i + 1], alone(path, text, kv), f"sequence {i}")


def test_groups_of_all_kinds_in_one_batch(path: Path) -> None:
    """Sequences that share two spans, one span, or none; a run of a prompt in between; another number of spans."""
    lengths = [len(PREFIX), len(PREFIX), 2 * SPAN + 1, SPAN + 40, SPAN + 7, 20]
    with context(path) as ctx:
        texts = share(ctx, lengths)
        apart = random_ids(2 * SPAN + 9, 128, 5)
        feed(ctx, [(ctx.memory.sequence(6), apart)], "none")
        texts.append(apart)
        order = [0, 1, 2, 6, 3, 4, 5]
        more = {i: random_ids(5 if i == 5 else 1, 128, 20 + i) for i in order}
        rows = feed(ctx, [(ctx.memory.sequence(i), more[i]) for i in order], "last")
        units = units_of(ctx)
    assert [(u["group_row"], u["group_rows"], u["span"]) for u in units] == [
        (0, 3, 0), (0, 3, 1), (0, 3, 2), (0, 3, 2), (0, 3, 2),
        (3, 1, -1),
        (4, 2, 0), (4, 2, 1), (4, 2, 1),
        (6, 5, -1),
    ]  # fmt: skip
    for row, i in zip(rows, order, strict=True):
        want = alone(path, texts[i] + more[i])
        assert_same_bits(row[None], want, f"sequence {i}")


def test_two_tokens_of_one_sequence_share_with_each_other(path: Path) -> None:
    with context(path) as ctx:
        seq = ctx.memory.sequence(0)
        feed(ctx, [(seq, PREFIX)], "none")
        rows = feed(ctx, [(seq, [3]), (seq, [4])])
        assert units_of(ctx)[0]["n_rows"] == 2
    assert_same_bits(rows[1:], alone(path, [*PREFIX, 3, 4]), "the second")


def test_a_prefix_shorter_than_a_span_is_met_by_each(path: Path) -> None:
    with context(path) as ctx:
        share(ctx, [SPAN - 1] * 4)
        ctx.memory.seq_rm(0, SPAN - 1, -1)
        feed(ctx, [(ctx.memory.sequence(i), [i]) for i in range(4)])
        assert all(u["n_rows"] == 1 for u in units_of(ctx))


def test_few_shared_spans_are_left_to_many_threads(path: Path) -> None:
    """Two spans and two KV heads are four items of work: less than there are threads."""
    with context(path) as ctx:
        share(ctx, [len(PREFIX)] * 4)
        sizes = ctx._unit_sizes
        ctx._unit_sizes = UnitSizes(sizes.n_rows, sizes.n_head, 5, sizes.may_share)
        feed(ctx, [(ctx.memory.sequence(i), [i]) for i in range(4)])
        assert all(u["n_rows"] == 1 for u in units_of(ctx))


@pytest.mark.parametrize("arch", ["bloom", "gemma3"])
def test_models_whose_scores_depend_on_a_rows_position_do_not_share(tmp_path: Path, arch: str) -> None:
    """ALiBi, and windows."""
    path = make_model(tmp_path / "m.gguf", arch=arch, n_ctx_train=2048)
    with context(path) as ctx:
        texts = share(ctx, [len(PREFIX)] * 4)
        rows = feed(ctx, [(ctx.memory.sequence(i), [i]) for i in range(4)])
        assert not ctx._unit_sizes.may_share
    for i, text in enumerate(texts):
        assert_same_bits(rows[i : i + 1], alone(path, [*text, i]), f"sequence {i}")


def test_nothing_is_read_that_is_not_there(path: Path) -> None:
    """Partial results that no unit has written would show."""
    with context(path) as ctx:
        share(ctx, [len(PREFIX)] * 5)
        step = [(ctx.memory.sequence(i), [i]) for i in range(5)]
        feed(ctx, step)
        ctx._inputs._partials[:] = np.nan
        assert np.isfinite(feed(ctx, step)).all()
