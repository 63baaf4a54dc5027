"""Ctrl-C at any step of loading a state, and of moving what was loaded: all as before, or all as wanted."""

import sys
from pathlib import Path

import pytest

from tests import engine_runs as runs
from tests.engine.interrupts import Interrupter
from tests.engine.state.states import IDS, counted

runs.need_engine()

from llmkit.engine.state.save_load import load_state, save_state  # noqa: E402

STATE_FILES = ("engine/state/save_load.py", "memory/snapshot.py", "memory/block_pool.py", "memory/kv_cache.py")


@pytest.mark.parametrize("compress", [False, True])
def test_a_load_that_is_interrupted(models: dict[str, Path], path: Path, compress: bool) -> None:
    """Ctrl-C before (nearly) any step: both sequences hold what they held, or both what the file has."""
    with runs.context(models["gemma3"], kv="f16", n_threads=1, seed=8) as ctx:
        old, new = (IDS[:40], IDS[50:110]), (IDS[:70], IDS[:90])
        pair = [ctx.new_sequence() for _ in range(2)]
        runs.feed(ctx, list(zip(pair, new, strict=True)), "none")
        save_state(ctx, path, dict(enumerate(pair)), compress=compress)
        for seq in pair:
            ctx.free_sequence(seq)
        step, interrupted = 0, True
        while interrupted:
            step += 79
            pair = [ctx.new_sequence() for _ in range(2)]
            runs.feed(ctx, list(zip(pair, old, strict=True)), "none")
            sys.settrace(Interrupter(step, STATE_FILES))
            try:
                load_state(ctx, path, dict(enumerate(pair)))
                interrupted = False
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            assert [seq.tokens.tolist() for seq in pair] in (list(map(list, old)), list(map(list, new))), step
            assert counted(ctx), step
            for seq in pair:
                ctx.free_sequence(seq)
        assert step > 1000


def test_a_token_that_is_interrupted(models: dict[str, Path], path: Path) -> None:
    """Before any step of moving a mapped block into the arena: the next try gives the same bits."""
    with runs.context(models["llama"], kv="f16", n_threads=1) as ctx:
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, IDS[:40])], "none")
        save_state(ctx, path, seq)
        want = runs.feed(ctx, [(seq, [5])])
        step, interrupted = 0, True
        while interrupted:
            step += 3
            load_state(ctx, path, seq)
            sys.settrace(Interrupter(step, STATE_FILES))
            try:
                runs.feed(ctx, [(seq, [5])])
                interrupted = False
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            if interrupted:
                assert seq.n_tokens == 40
                runs.assert_same_bits(runs.feed(ctx, [(seq, [5])]), want, f"step {step}")
            assert counted(ctx), step
        assert step > 100
