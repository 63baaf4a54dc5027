"""Random operations on shared sequences against private ones: what they hold, and every bit of their logits.

The engine under test has few blocks, at random places, full of NaN where they are free; it shares, copies on write,
drops what is behind a window, and runs full. The twin (private_twin) does nothing of that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import engine_runs as runs
from tests import reference as ref
from tests.make_models import make_model

runs.need_engine()

from llmkit.engine.batch import Segment  # noqa: E402
from llmkit.engine.context import Context  # noqa: E402
from llmkit.errors import ContextFullError, RewindError  # noqa: E402
from llmkit.params import ContextParams  # noqa: E402
from tests.engine.private_twin import Private, Twin  # noqa: E402

N_VOCAB, N_CTX, N_SEQUENCES = 128, 480, 4


@dataclass(frozen=True)
class Case:
    """A tiny model, the types of its memory, and how far logits may be off once keys were turned."""

    arch: str
    type_k: str = "f16"
    type_v: str = "f16"
    nmse: float = 1e-3
    window: int = 0
    metadata: tuple[tuple[str, object], ...] = ()

    @property
    def changes(self) -> dict[str, Any]:
        sizes: dict[str, Any] = {
            "n_embd": 64,
            "head_dim": 64,
            "n_head": 2,
            "n_head_kv": 1,
            "n_layer": 2,
            "n_ctx_train": 4096,
        }
        return sizes | {"window": self.window or 32, "window_pattern": (1, 0), "metadata": dict(self.metadata)}


CASES = [
    Case("llama"),
    Case("gemma3", window=40),
    Case("stablelm", type_k="q8_0", type_v="q8_0"),
    Case("llama", type_k="q4_0", nmse=2e-2),
]
POSITIONS = st.one_of(st.just(-1), st.integers(0, 120))
IDS = st.integers(0, N_SEQUENCES - 1)
SEEDS = st.integers(0, 2**20)
OFTEN = [
    st.tuples(st.just("decode"), IDS, st.integers(1, 90), SEEDS),
    st.tuples(st.just("decode"), IDS, st.integers(1, 3), SEEDS),
    st.tuples(st.just("rm"), IDS, st.integers(1, 150), st.just(-1)),
    st.tuples(st.just("cp"), IDS, IDS, st.just(-1), st.one_of(st.just(-1), st.integers(1, 150))),
]
SOMETIMES = [
    st.tuples(st.just("rm"), IDS, POSITIONS, POSITIONS),
    st.tuples(st.just("cp"), IDS, IDS, POSITIONS, POSITIONS),
    st.tuples(st.just("add"), IDS, POSITIONS, POSITIONS, st.integers(-60, 60)),
    st.tuples(st.just("div"), IDS, POSITIONS, POSITIONS, st.integers(1, 4)),
]
SELDOM = [
    st.tuples(st.just("rm"), st.just(-1), POSITIONS, POSITIONS),
    st.tuples(st.just("keep"), IDS),
]
STEPS = st.lists(st.one_of(*OFTEN, *OFTEN, *SOMETIMES, st.one_of(*SELDOM)), min_size=8, max_size=24)


class Pair:
    """The engine and the twin, to which the same is done."""

    def __init__(self, ctx: Context, twin: Twin, nmse: float, window: int) -> None:
        self.ctx, self.twin, self.nmse, self.window = ctx, twin, nmse, window

    def do(self, step: tuple[Any, ...]) -> None:
        name, *args = step
        getattr(self, name)(*args)
        self.compare()

    def compare(self) -> None:
        """Same tokens, same positions; and each block is referenced as often as sequences lie in it."""
        for k, pool in enumerate(self.ctx.kv.pools):
            counted = np.zeros(pool.n_blocks, np.int32)
            for seq in self.ctx.kv.sequences:
                counted[seq.chain.blocks(k)] += 1
            assert (pool.n_refs_of(np.arange(pool.n_blocks)) == counted).all()
        for i in range(N_SEQUENCES):
            got, want = self.ctx.memory.sequence(i), self.twin.get(i)
            assert got.tokens.tolist() == want.tokens.tolist(), i
            assert got.positions.tolist() == want.pos.tolist(), i
            assert self.ctx.memory.seq_pos_max(i) == (want.pos[-1] if want.pos.size else -1)
            low = self.ctx.memory.seq_pos_min(i)
            assert low == (want.pos[0] if want.pos.size else -1) or (self.window and want.passed[want.pos < low].all())

    def change(self, operation: Callable[[], object], wanted: dict[int, Private]) -> None:
        """An operation is refused where a window lacks something, or blocks; else both change."""
        lacking = any(self.twin.lacks(seq) for seq in wanted.values())
        before = [pool.n_free for pool in self.ctx.kv.pools]
        try:
            refused = operation() is False
        except RewindError:
            refused = True
        except ContextFullError:
            assert min(before) < N_CTX // 64, "there was room to copy any sequence"
            assert [pool.n_free for pool in self.ctx.kv.pools] == before
            return
        if refused:
            assert lacking, "nothing that is needed can have been dropped"
            assert [pool.n_free for pool in self.ctx.kv.pools] == before
        else:
            self.twin.sequences |= wanted

    def rm(self, seq_id: int, p0: int, p1: int) -> None:
        self.change(lambda: self.ctx.memory.seq_rm(seq_id, p0, p1), self.twin.rm(seq_id, p0, p1))

    def cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        self.change(lambda: self.ctx.memory.seq_cp(src, dst, p0, p1), self.twin.cp(src, dst, p0, p1))

    def keep(self, seq_id: int) -> None:
        self.change(lambda: self.ctx.memory.seq_keep(seq_id), self.twin.keep(seq_id))

    def add(self, seq_id: int, p0: int, p1: int, delta: int) -> None:
        moved = self.twin.move(seq_id, p0, p1, self.twin.get(seq_id).pos + delta)
        self.change(lambda: self.ctx.memory.seq_add(seq_id, p0, p1, delta), moved)

    def div(self, seq_id: int, p0: int, p1: int, d: int) -> None:
        moved = self.twin.move(seq_id, p0, p1, self.twin.get(seq_id).pos // d)
        self.change(lambda: self.ctx.memory.seq_div(seq_id, p0, p1, d), moved)

    def decode(self, seq_id: int, n: int, seed: int) -> None:
        tokens, seq, before = runs.random_ids(n, N_VOCAB, seed), self.twin.get(seq_id), self.held()
        try:
            got = np.array(self.ctx.decode([Segment(self.ctx.memory.sequence(seq_id), tokens, "all")]))
        except ContextFullError:
            n_needed = (n + seq.tokens.size) // 32 + 2  # new ones, and copies of all that it shares
            assert self.ctx.kv.pool.n_free < n_needed or n + seq.tokens.size > N_CTX
            assert self.held() == before
            return
        whole = self.twin.is_whole(seq_id)
        want = self.twin.decode(seq_id, tokens)
        if seq.shifted:
            error = ref.ops.nmse(got, want)
            assert error <= self.nmse, f"NMSE {error:.2g} after a shift"
        else:
            runs.assert_same_bits(got, want, f"sequence {seq_id}")
        if whole and not seq.shifted:
            ids = [*map(int, seq.tokens), *tokens]
            runs.assert_same_bits(got, runs.prefill(self.twin.ctx, ids, 512)[-n:], f"sequence {seq_id}, computed anew")

    def held(self) -> list[tuple[list[int], list[int]]]:
        sequences = [self.ctx.memory.sequence(i) for i in range(N_SEQUENCES)]
        return [(seq.tokens.tolist(), seq.positions.tolist()) for seq in sequences]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case.arch}-{case.type_k}")
def case(request: pytest.FixtureRequest) -> Case:
    assert isinstance(request.param, Case)
    return request.param


@pytest.fixture(scope="module")
def path(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("operations") / "m.gguf", arch=case.arch, **case.changes)


@pytest.fixture(scope="module")
def twin_context(case: Case, path: Path) -> Any:
    params = ContextParams(
        n_ctx=N_CTX, n_ubatch=128, n_threads=1, type_k=case.type_k, type_v=case.type_v, swa_full=True
    )
    with Context(runs.load(path), params) as ctx:
        yield ctx


def frequencies(ctx: Context) -> dict[bool, Any]:
    config = ctx.model.config
    return {
        window: rope.frequencies(config.n_rot, None)
        for window, rope in ((False, config.rope), (True, config.rope_window))
    }


def pair(case: Case, path: Path, twin_context: Context, seed: int) -> Pair:
    params = ContextParams(n_ctx=N_CTX, n_ubatch=48, n_threads=2, type_k=case.type_k, type_v=case.type_v)
    ctx = Context(runs.load(path), params)
    for pool in ctx.kv.pools:
        pool.shuffle(seed)
        pool.poison(True)
    interleaved = case.arch == "llama"
    return Pair(ctx, Twin(twin_context, case.window, frequencies(ctx), interleaved), case.nmse, case.window)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, seed=st.integers(0, 1000))
def test_random_operations(case: Case, path: Path, twin_context: Context, steps: list[Any], seed: int) -> None:
    both = pair(case, path, twin_context, seed)
    with both.ctx:
        for step in [("decode", 0, 50, seed), *steps, *[("decode", i, 2, seed + i) for i in range(N_SEQUENCES)]]:
            both.do(step)
        both.ctx.memory.clear()
        assert [pool.n_used for pool in both.ctx.kv.pools] == [0] * len(both.ctx.kv.pools)
