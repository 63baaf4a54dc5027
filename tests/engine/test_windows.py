"""Layers with a window: what they hold, that dropping changes no bit, and that a failed batch is taken back whole."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import engine_runs as runs
from tests.make_archs import FILES
from tests.make_models import make_model

runs.need_engine()

from llmkit.engine.batch import Segment  # noqa: E402
from llmkit.engine.context import Context  # noqa: E402
from llmkit.errors import NumericsError  # noqa: E402
from llmkit.params import ContextParams  # noqa: E402

WINDOW, N_VOCAB = 48, 128
WINDOWED = [arch for arch, files in FILES.items() if files.window]


def tiny(folder: Path, arch: str = "gemma3", window: int = WINDOW) -> Path:
    return make_model(folder / f"{arch}.gguf", arch=arch, n_ctx_train=8192, window=window, window_pattern=(1, 0))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("windows"))


@pytest.fixture
def ctx(path: Path) -> Iterator[Context]:
    with Context(runs.load(path), ContextParams(n_ctx=1280, n_ubatch=64, n_threads=2)) as ctx:
        yield ctx


def decode(ctx: Context, seq: Any, ids: list[int]) -> np.ndarray:
    return np.array(ctx.decode([Segment(seq, ids, "all")]))


@pytest.mark.parametrize("arch", WINDOWED)
def test_every_architecture_drops_and_gives_the_same_bits(arch: str, tmp_path: Path) -> None:
    ids, logits = runs.random_ids(400, N_VOCAB, seed=1), []
    for swa_full in (True, False):
        params = ContextParams(n_ctx=512, n_ubatch=64, n_threads=2, swa_full=swa_full)
        with Context(runs.load(tiny(tmp_path, arch)), params) as ctx:
            seq = ctx.memory.sequence(0)
            rows = [decode(ctx, seq, ids[:150]), decode(ctx, seq, ids[150:153])]
            ctx.memory.seq_cp(0, 1)
            rows += [decode(ctx, seq, [token]) for token in ids[153:160]]
            rows += [decode(ctx, ctx.memory.sequence(1), ids[153:])]
            logits.append(np.concatenate(rows))
            window = ctx.memory.usage().kind("window")
            assert (window is None) == swa_full
            assert ctx.memory.rewind == ("any" if swa_full else "points")
            assert ctx.memory.seq_pos_min(1) == (0 if swa_full else 352)
            assert ctx.memory.seq_rm(1, 330) == swa_full
    runs.assert_same_bits(logits[1], logits[0], arch)


def test_a_long_prompt_holds_little_more_than_the_window(tmp_path: Path) -> None:
    with Context(runs.load(tiny(tmp_path, window=512)), ContextParams(n_ctx=4096, n_threads=2)) as ctx:
        seq = ctx.memory.sequence(0)
        for first in range(0, 4000, 1000):  # each in two ubatches, the second of which begins with what the first holds
            ctx.decode([Segment(seq, runs.random_ids(1000, N_VOCAB, first), "none")])
            window = ctx.memory.usage().kind("window")
            assert window is not None
            assert window.cells_used <= 1.2 * 512
        assert window.cells_peak <= 512 + 512 + 512 + 96


@pytest.mark.parametrize("error", [NumericsError("no numbers"), KeyboardInterrupt()])
@pytest.mark.parametrize("ubatch", [0, 1, 4])
def test_a_failed_batch_is_taken_back(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, error: BaseException, ubatch: int
) -> None:
    ids = runs.random_ids(520, N_VOCAB, seed=2)
    seq, other, n_done = ctx.memory.sequence(0), ctx.memory.sequence(1), []
    decode(ctx, seq, ids[:100])
    ctx.memory.seq_cp(0, 1)
    want = decode(ctx, other, ids[100:500])
    before = ctx.memory.usage().kinds[1].cells_used, ctx.memory.seq_pos_min(0), seq.positions.tolist()
    run = ctx._team.run

    def fail(plan: int) -> None:
        if len(n_done) == ubatch:
            raise error
        n_done.append(plan)
        run(plan)

    monkeypatch.setattr(ctx._team, "run", fail)
    with pytest.raises(type(error)):
        decode(ctx, seq, ids[100:500])
    monkeypatch.undo()
    assert (ctx.memory.usage().kinds[1].cells_used, ctx.memory.seq_pos_min(0), seq.positions.tolist()) == before
    runs.assert_same_bits(decode(ctx, seq, ids[100:500]), want, "after the failure")
    runs.assert_same_bits(decode(ctx, seq, ids[500:]), decode(ctx, other, ids[500:]), "and further on")


def test_a_prompt_of_any_length_leaves_what_the_next_token_sees(path: Path) -> None:
    ids = runs.random_ids(140, N_VOCAB, seed=3)
    with (
        Context(runs.load(path), ContextParams(n_ctx=256, n_ubatch=128, n_threads=1)) as ctx,
        Context(runs.load(path), ContextParams(n_ctx=256, n_ubatch=128, n_threads=1, swa_full=True)) as full,
    ):
        want = decode(full, full.memory.sequence(0), ids)
        for n in range(WINDOW - 2, 120):
            seq = ctx.new_sequence()
            ctx.decode([Segment(seq, ids[:n], "none")])
            runs.assert_same_bits(decode(ctx, seq, ids[n : n + 20]), want[n : n + 20], f"after {n} tokens")
            ctx.free_sequence(seq)


def test_a_window_as_large_as_the_context_is_none(path: Path) -> None:
    with Context(runs.load(path), ContextParams(n_ctx=WINDOW, n_threads=1)) as ctx:
        assert (ctx.memory.rewind, [kind.name for kind in ctx.memory.usage().kinds]) == ("any", ["full"])
