"""Equal bits: a token's logits do not depend on how, where, and beside what they are computed.

One run per model and cache type is the yardstick: the whole prompt in chunks of 512 on one thread, alone, blocks in
order. Every other way to compute the same tokens must give the same uint32s at every position. Wherever blocks are put
at random, freed blocks are filled with NaN: a kernel that looks past its sequence shows.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import engine_runs as runs
from tests.make_archs import FILES
from tests.make_blocks import TYPES
from tests.make_models import make_model

runs.need_engine()

ARCHS = tuple(FILES)
N_VOCAB = 131  # no multiple of a tile's rows
N_TOKENS = 600
CHUNKS = (1, 7, 64, 512)
THREADS = (1, 2, 3)

# Every type and every architecture at least once.
TINY = [(ARCHS[i % len(ARCHS)], TYPES[i % len(TYPES)]) for i in range(max(len(ARCHS), len(TYPES)))]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A tiny model of (architecture, tensor type); 256 wide, so that K-quants fit; two query heads to a key head."""
    arch, kind = request.param
    path = tmp_path_factory.mktemp("exact") / f"{arch}-{kind}.gguf"
    sizes: dict[str, Any] = {"n_embd": 256, "n_ff": 512, "n_head": 4, "n_head_kv": 2, "head_dim": 64}
    pattern = (1, 0) if FILES[arch].window else ()
    return make_model(
        path, arch=arch, type=kind, n_vocab=N_VOCAB, n_ctx_train=4096, window=50, window_pattern=pattern, **sizes
    )


@pytest.fixture(scope="module", params=["f32", "f16"])
def kv(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return runs.random_ids(N_TOKENS, N_VOCAB, seed=1)


@pytest.fixture(scope="module")
def yardstick(tiny: Path, kv: str, ids: list[int]) -> NDArray[np.float32]:
    with runs.context(tiny, n_threads=1, kv=kv, swa_full=True) as ctx:
        return runs.prefill(ctx, ids, 512)


every_tiny = pytest.mark.parametrize("tiny", TINY, ids=[f"{arch}-{kind}" for arch, kind in TINY], indirect=True)


@every_tiny
def test_chunks_and_threads(tiny: Path, kv: str, ids: list[int], yardstick: NDArray[np.float32]) -> None:
    for n_threads in THREADS:
        with runs.context(tiny, n_threads=n_threads, kv=kv, seed=n_threads) as ctx:
            for chunk in CHUNKS:
                runs.assert_same_bits(runs.prefill(ctx, ids, chunk), yardstick, f"chunk {chunk}, {n_threads} threads")


@every_tiny
def test_beside_other_sequences(tiny: Path, kv: str, ids: list[int], yardstick: NDArray[np.float32]) -> None:
    """Seven sequences at once. Three hold (parts of) the prompt of the yardstick, four hold something else."""
    others = [runs.random_ids(n, N_VOCAB, seed=n) for n in (33, 150, 31, 210)]
    prompts = [ids[:300], others[0], ids[:97], others[1], others[2], ids[:256], others[3]]
    for n_threads, n_ubatch in ((2, 512), (3, 24)):
        with runs.context(tiny, n_threads=n_threads, kv=kv, n_ubatch=n_ubatch, seed=9) as ctx:
            got = runs.interleave(ctx, prompts, seed=n_threads)
            for i in (0, 2, 5):
                runs.assert_same_bits(got[i], yardstick[: len(prompts[i])], f"sequence {i} of 7, {n_threads} threads")
            for i in (1, 3, 4, 6):
                runs.assert_same_bits(got[i], runs.prefill(ctx, prompts[i], 512), f"sequence {i} of 7, against alone")


def test_blocks_are_scattered_and_freed_ones_are_nan(tmp_path: Path) -> None:
    """What the tests above rely on: the pool's two hooks do something."""
    path = make_model(tmp_path / "m.gguf")
    with runs.context(path, n_ctx=512, seed=3) as ctx:
        pool, seq = ctx.kv.pool, ctx.new_sequence()
        floats = pool.data.view(np.float32).reshape(pool.n_blocks, -1)
        assert np.isnan(floats).all()
        runs.feed(ctx, [(seq, runs.random_ids(200, 100, seed=1))])
        used = np.flatnonzero(~np.isnan(floats).all(axis=1))
        assert len(used) == 7
        assert used.tolist() != list(range(7))
        ctx.free_sequence(seq)
        assert np.isnan(floats).all()
