"""Cells that several sequences lie in: nobody's batch or shift may change what another holds, or goes back to."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import engine_runs as runs
from tests.make_models import make_model

runs.need_engine()

from llmkit.engine.batch import Segment  # noqa: E402
from llmkit.engine.context import Context  # noqa: E402
from llmkit.errors import ContextFullError, NumericsError  # noqa: E402
from llmkit.memory.operations import MAX_POS  # noqa: E402
from llmkit.params import ContextParams  # noqa: E402
from tests.engine.interrupts import Interrupter  # noqa: E402

N_VOCAB = 128
IDS = runs.random_ids(60, N_VOCAB, seed=1)


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    path = make_model(tmp_path / "m.gguf", arch="llama", n_ctx_train=4096)
    with Context(runs.load(path), ContextParams(n_ctx=512, n_threads=2)) as ctx:
        yield ctx


def decode(ctx: Context, seq_id: int, ids: list[int]) -> Any:
    return np.array(ctx.decode([Segment(ctx.memory.sequence(seq_id), ids, "all")]))


def all_blocks_are_counted(ctx: Context) -> bool:
    counted = np.zeros(ctx.kv.pool.n_blocks, np.int32)
    for seq in ctx.kv.sequences:
        counted[seq.chain.blocks(0)] += 1
    return bool((ctx.kv.pool.n_refs_of(np.arange(counted.size)) == counted).all()) and (
        ctx.kv.pool.n_used == np.count_nonzero(counted)
    )


@pytest.mark.parametrize("error", [NumericsError("no numbers"), KeyboardInterrupt()])
def test_a_block_that_one_leaves_in_a_failed_batch_is_not_written(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The longer sequence leaves the block first, the shorter would then be alone in it, and write over its cells."""
    decode(ctx, 0, IDS[:40])
    for seq_id in (1, 2):
        ctx.memory.seq_cp(0, seq_id)
    ctx.memory.seq_rm(1, 35)
    want = decode(ctx, 2, [7, 8])
    ctx.memory.seq_rm(2)
    run = ctx._team.run

    def fail(plan: int) -> None:
        run(plan)
        raise error

    monkeypatch.setattr(ctx._team, "run", fail)
    long, short = ctx.memory.sequence(0), ctx.memory.sequence(1)
    with pytest.raises(type(error)):
        ctx.decode([Segment(long, [3], "last"), Segment(short, [9, 10, 11], "last")])
    monkeypatch.undo()
    assert all_blocks_are_counted(ctx)
    runs.assert_same_bits(decode(ctx, 0, [7, 8]), want, "after the failure")
    ctx.decode([Segment(long, [3], "last"), Segment(short, [9, 10, 11], "last")])
    assert all_blocks_are_counted(ctx)


def test_a_cell_is_not_in_a_sequence_for_two_positions(ctx: Context) -> None:
    """A copy that was moved but not turned yet gets the range that it came from back: both have the same cells."""
    decode(ctx, 0, IDS[:40])
    results = []
    for seq_id, settled in ((1, True), (2, False)):
        ctx.memory.seq_cp(0, seq_id)
        ctx.memory.seq_add(seq_id, -1, -1, 100)
        if settled:
            ctx.memory.settle(ctx.memory.sequence(seq_id))
        ctx.memory.seq_cp(0, seq_id, 0, 50)
        assert ctx.memory.sequence(seq_id).positions.tolist() == [*range(40), *range(100, 140)]
        results.append(decode(ctx, seq_id, [3, 4]))
    runs.assert_same_bits(results[1], results[0], "moved before it was copied onto")


def test_positions_end(ctx: Context) -> None:
    decode(ctx, 0, IDS[:10])
    ctx.memory.seq_add(0, -1, -1, MAX_POS - 15)
    decode(ctx, 0, IDS[:5])
    assert ctx.memory.seq_pos_max(0) == MAX_POS - 1
    with pytest.raises(ContextFullError, match="they end before"):
        decode(ctx, 0, [1])
    ctx.memory.seq_div(0, -1, -1, 1 << 70)
    assert ctx.memory.seq_pos_max(0) == 0


CHANGES: dict[str, Callable[[Context], object]] = {
    "cp": lambda ctx: ctx.memory.seq_cp(0, 1),
    "rm": lambda ctx: ctx.memory.seq_rm(1, 20),
    "add": lambda ctx: ctx.memory.seq_add(1, -1, -1, 5),
    "settle": lambda ctx: ctx.memory.settle(ctx.memory.sequence(2)),
    "keep": lambda ctx: ctx.memory.seq_keep(0),
    "clear": lambda ctx: ctx.memory.clear(),
    "free": lambda ctx: ctx.free_sequence(ctx.memory.sequence(1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupted_operation_leaks_no_block(ctx: Context, name: str) -> None:
    """Before every step of the memory's code, until the operation is through."""
    decode(ctx, 0, IDS[:33])
    interrupted, n = True, 0
    while interrupted:
        decode(ctx, 0, IDS[: 33 - ctx.memory.sequence(0).n_tokens])
        for seq_id in (1, 2):
            ctx.memory.seq_rm(seq_id)
            ctx.memory.seq_cp(0, seq_id)
        decode(ctx, 1, [1, 2])
        ctx.memory.seq_add(2, 10, -1, 3)
        n += 1
        sys.settrace(Interrupter(n, ("kv_cache.py", "block_pool.py", "shifts.py")))
        try:
            CHANGES[name](ctx)
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert all_blocks_are_counted(ctx), f"interrupted before step {n}"
    assert n > 50
