"""The thread team: no wake-up is lost, idle threads cost nothing, and no way of leaving one leaves threads behind."""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests import engine_runs as runs
from tests.make_models import make_model
from tests.paths import REPO_ROOT

runs.need_engine()

from llmkit.engine.batch import Segment  # noqa: E402
from llmkit.engine.context import Context  # noqa: E402
from llmkit.engine.thread_team import ThreadTeam  # noqa: E402
from llmkit.errors import UsageError  # noqa: E402
from llmkit.params import ContextParams  # noqa: E402

N_SMALL_PLANS = 1500


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("team") / "m.gguf", n_layer=1)


def new_context(path: Path, n_threads: int) -> Context:
    return Context(runs.load(path), ContextParams(n_ctx=64, n_threads=n_threads))


def one_token(ctx: Context) -> np.ndarray:
    """A plan of a few dozen steps, as small as they come; the sequence is gone again."""
    seq = ctx.new_sequence()
    logits = np.array(ctx.decode([Segment(seq, [5], "last")]))
    ctx.free_sequence(seq)
    return logits


def llmkit_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("llmkit-")}


@pytest.mark.parametrize("n_threads", [2, 3, 5])
def test_small_plans_with_pauses_around_falling_asleep(path: Path, n_threads: int) -> None:
    """A worker falls asleep after about a millisecond: pauses of up to three lie on all sides of that."""
    rng = random.Random(n_threads)
    with new_context(path, n_threads) as ctx:
        want = one_token(ctx)
        for _ in range(N_SMALL_PLANS // n_threads):
            until = time.perf_counter() + rng.choice((0.0, rng.uniform(0, 0.003)))
            while time.perf_counter() < until:
                pass
            assert (one_token(ctx).view(np.uint32) == want.view(np.uint32)).all()


def test_nobody_waits_for_a_thread_that_does_not_come(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that sleep on, as if the system gave them no core; then they are back, in the middle of a run."""
    with new_context(path, 3) as ctx:
        want = one_token(ctx)
        with monkeypatch.context() as patch:
            patch.setattr(ctx.team._workers, "wake", lambda: None)
            time.sleep(0.1)
            for _ in range(20):
                assert (one_token(ctx).view(np.uint32) == want.view(np.uint32)).all()
            assert all(lock.locked() for lock in ctx.team._workers.locks)
        for pause in (0.0, 0.0002, 0.0005, 0.001):
            timer = threading.Timer(pause, ctx.team._workers.wake)
            timer.start()
            for _ in range(10):
                assert (one_token(ctx).view(np.uint32) == want.view(np.uint32)).all()
            timer.join()


def test_idle_contexts_use_no_cpu(path: Path) -> None:
    with new_context(path, 3) as ctx:
        one_token(ctx)
        used = []
        while not used or (used[-1] >= 0.010 and len(used) < 10):  # on a busy machine it takes a while to fall asleep
            before = time.process_time()
            time.sleep(0.5)
            used.append(time.process_time() - before)
        assert used[-1] < 0.010


def test_a_context_that_nobody_closed_ends_its_threads(path: Path) -> None:
    before = llmkit_threads()
    for _ in range(10):
        ctx = new_context(path, 3)
        one_token(ctx)
    assert len(llmkit_threads() - before) >= 2
    del ctx
    gc.collect()
    assert llmkit_threads() <= before


def test_closing_twice_and_using_after_that(path: Path) -> None:
    for n_threads in (1, 2):
        ctx = new_context(path, n_threads)
        seq = ctx.new_sequence()
        ctx.close()
        ctx.close()
        with pytest.raises(UsageError, match="closed"):
            ctx.decode([Segment(seq, [5], "last")])
        assert seq.n_tokens == 0


def test_two_contexts_in_two_threads(path: Path) -> None:
    with new_context(path, 2) as a, new_context(path, 2) as b:
        want, wrong = one_token(a), list[str]()

        def decode(ctx: Context) -> None:
            for i in range(200):
                if (one_token(ctx).view(np.uint32) != want.view(np.uint32)).any():
                    wrong.append(f"decode {i}")

        others = [threading.Thread(target=decode, args=(ctx,)) for ctx in (a, b)]
        for thread in others:
            thread.start()
        for thread in others:
            thread.join(60)
        assert not wrong
        assert not any(thread.is_alive() for thread in others)


def test_a_forked_child_has_threads_of_its_own(path: Path) -> None:
    """In a process of its own: pytest's has other threads, of which a fork copies none but the locks."""
    code = f"""
import os, sys, numpy as np
from tests.engine.test_thread_team import new_context, one_token
ctx = new_context({str(path)!r}, 2)
want = one_token(ctx)
child = os.fork()
same = (one_token(ctx) == want).all()
ctx.close()
if child == 0:
    os._exit(0 if same else 1)
sys.exit(os.waitpid(child, 0)[1] or not same)
"""
    subprocess.run([sys.executable, "-c", code], cwd=REPO_ROOT, timeout=60, check=True)


def test_the_system_gives_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before, start = llmkit_threads(), threading.Thread.start
    budget = iter(range(3))

    def refuse(thread: threading.Thread) -> None:
        if next(budget, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(UsageError, match="6 threads"):
        ThreadTeam(6)
    assert llmkit_threads() == before


def test_ctrl_c_at_every_instruction(path: Path) -> None:
    """tests/engine/interrupts.py; a team that was left half started would hang, which ends it after a minute."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.interrupts", str(path)],
        cwd=REPO_ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(int(n) > 30 for n in done.stdout.split())  # Python 3.13 has fewer and longer instructions


def test_ctrl_c_while_decoding(path: Path) -> None:
    """A real signal: it lands wherever it lands, and the context goes on with the same bits."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals arrive in the main thread")
    with new_context(path, 2) as ctx:
        want, n_interrupted = one_token(ctx), 0
        for i in range(60):
            timer = threading.Timer(0.0005 * (i % 8), os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                while timer.is_alive():
                    one_token(ctx)
                time.sleep(0.05)
            except KeyboardInterrupt:
                n_interrupted += 1
            timer.join()
            for seq in list(ctx.kv.sequences):  # one_token may have been interrupted before it did
                ctx.free_sequence(seq)
            assert (one_token(ctx).view(np.uint32) == want.view(np.uint32)).all()
        assert n_interrupted == 60
        assert ctx.kv.pool.n_free == ctx.kv.pool.n_blocks
