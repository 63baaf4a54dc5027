"""K and V of every type through the engine: right numbers, equal bits, no more bytes than the type says.

What a single cell or tile holds is tested in tests/kernels (test_kv_store, test_attention).
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from llmkit.errors import UsageError
from llmkit.params import KV_TYPES
from tests import engine_runs as runs
from tests import reference as ref
from tests.make_models import make_model
from tests.paths import REPO_ROOT
from tests.reference import kv

runs.need_engine()

SIZES = {"n_embd": 256, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "n_vocab": 131, "n_ctx_train": 1024}
NEW = ("bf16", *kv.QUANTISED)  # f32 and f16 are in test_exactness
PAIRS = (*NEW, "q8_0/q4_0", "iq4_nl/f16", "f32/q5_1")
IDS = runs.random_ids(300, 131, seed=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, the second with a window; two query heads to a key head."""
    folder = tmp_path_factory.mktemp("kv")
    return make_model(folder / "m.gguf", arch="gemma3", window=50, window_pattern=(0, 1), **SIZES)


def test_the_types_are_llama_cpps() -> None:
    from llmkit.kernels.kv_types import registry

    assert set(KV_TYPES) == set(kv.TYPES) == set(registry.TYPES)
    for name in KV_TYPES:
        assert registry.head_bytes(name, 64) == kv.head_bytes(name, 64)


@pytest.mark.parametrize("name", PAIRS)
def test_equal_bits(model: Path, name: str) -> None:
    """In chunks, by several threads, beside others, in blocks anywhere: as the whole prompt alone on one thread."""
    with runs.context(model, n_threads=1, kv=name) as ctx:
        want = runs.prefill(ctx, IDS, 512)
    for n_threads, chunk in ((2, 1), (3, 7), (2, 64)):
        with runs.context(model, n_threads=n_threads, kv=name, seed=n_threads, n_ubatch=40) as ctx:
            runs.assert_same_bits(runs.prefill(ctx, IDS, chunk), want, f"chunk {chunk}, {n_threads} threads")
    prompts = [IDS[:200], runs.random_ids(90, 131, seed=5), IDS[:65]]
    with runs.context(model, n_threads=2, kv=name, seed=9) as ctx:
        got = runs.interleave(ctx, prompts, seed=3)
    runs.assert_same_bits(got[0], want[:200], "beside others")
    runs.assert_same_bits(got[2], want[:65], "beside others")


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("head_dim", [64, 32])
def test_against_the_twin(tmp_path: Path, name: str, head_dim: int) -> None:
    """Rotated (heads of 64 values) and not (32); an edge between two codes may be met, which changes little."""
    path = make_model(tmp_path / "m.gguf", type="F32", **{**SIZES, "head_dim": head_dim})
    ids = IDS[:70]
    want = ref.Twin(path, kv=name).forward(ids)
    with runs.context(path, kv=name, seed=1) as ctx:
        got = runs.prefill(ctx, ids, 16)
    errors = np.array([ref.nmse(a, b) for a, b in zip(got, want, strict=True)])
    assert np.median(errors) < 1e-7
    assert errors.max() < 1e-5
    assert ref.nmse(got, ref.Twin(path, kv="f32").forward(ids)) > 1e-6  # the type itself makes a difference


@pytest.mark.parametrize(("value", "on"), [("0", True), ("", True), ("no", True), ("1", False), (" -2x", False)])
def test_the_rotation_can_be_switched_off(model: Path, value: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", value)
    layout = runs.load(model).layout("q8_0", "q4_0")
    assert (layout.n_rot_k, layout.n_rot_v) == ((64, 64) if on else (0, 0))
    with runs.context(model, kv="q4_0") as ctx:
        got = runs.prefill(ctx, IDS[:40], 40)
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE")
    with runs.context(model, kv="q4_0") as ctx:
        assert (got == runs.prefill(ctx, IDS[:40], 40)).all() == on


@pytest.mark.parametrize(
    ("head_dim", "types", "sizes"),
    [
        (64, ("q8_0", "q4_0"), (64, 64)),
        (128, ("q8_0", "f16"), (128, 0)),
        (192, ("bf16", "q5_1"), (0, 64)),
        (192, ("q5_0", "f32"), (64, 0)),
        (256, ("iq4_nl", "q8_0"), (256, 64)),
        (96, ("q4_1", "q4_1"), (0, 0)),
    ],
)
def test_what_is_rotated(head_dim: int, types: tuple[str, str], sizes: tuple[int, int]) -> None:
    from llmkit.memory.kv_layout import KvLayout

    layout = KvLayout(2, 1, head_dim, *types)
    assert (layout.n_rot_k, layout.n_rot_v) == sizes


@pytest.mark.parametrize(("kv_type", "option"), [("q8_0/f16", "-ctk"), ("f16/iq4_nl", "-ctv")])
def test_a_head_that_no_block_divides_is_refused(tmp_path: Path, kv_type: str, option: str) -> None:
    path = make_model(tmp_path / "m.gguf", **{**SIZES, "head_dim": 40})
    with pytest.raises(UsageError, match="heads have 40") as error, runs.context(path, kv=kv_type):
        pass
    assert option in error.value.hint


def test_8k_tokens_take_the_bytes_of_their_type(tmp_path: Path) -> None:
    """A block of ggml's q4_0 is 18 bytes for 32 values; every byte of the pool holds something."""
    path = make_model(tmp_path / "m.gguf", n_layer=1, **{**SIZES, "n_ctx_train": 8192})
    with runs.context(path, kv="q4_0", n_ctx=8192) as ctx:
        pool = ctx.kv.pool
        assert pool.data.nbytes == 8192 * 2 * 2 * 64 * 18 // 32
        seq = ctx.new_sequence()
        runs.feed(ctx, [(seq, runs.random_ids(8192, 131, seed=2))], "last")
        assert pool.n_free == 0
        assert np.count_nonzero(pool.data.reshape(-1, 64).any(axis=1)) == pool.data.nbytes // 64


PROGRAM = """
import sys
from pathlib import Path
from tests import engine_runs as runs
with runs.context(Path(sys.argv[1]), kv=sys.argv[2]) as ctx:
    runs.prefill(ctx, [1, 2, 3], 3)
names = [name.rpartition(".")[2] for name in sys.modules if name.startswith("llmkit.kernels.kv_types.")]
print(*sorted(names))
"""


@pytest.mark.parametrize(
    ("name", "loaded"),
    [("f16", "f16 registry"), ("q8_0/f16", "f16 hadamard q8_0 quantised quantisers registry storing")],
)
def test_other_types_are_not_loaded(model: Path, name: str, loaded: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(model), name]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == loaded
