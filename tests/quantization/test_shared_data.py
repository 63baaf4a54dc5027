"""Every tensor of the shared reference data, which llama-quantize wrote: its type, and the SHA-256 of its bytes."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llmkit.files.gguf_reader import open_gguf
from tests.paths import DATA, SKIP_SLOW, TINY, need_shared
from tests.tools.in_process import run_llmkit

pytestmark = need_shared

EXPECTED = json.loads((DATA / "quantize.json").read_text()) if DATA.is_dir() else {}
DENSE = EXPECTED.get("tiny-llama-dense-f32", {})
SMOLLM2 = EXPECTED.get("SmolLM2-135M-Instruct-f16", {})


def written(path: Path) -> dict[str, list[str]]:
    """Type and digest of every tensor."""
    with open_gguf(path) as gguf:
        return {
            name: [info.type_name, hashlib.sha256(gguf.tensor_bytes(name).tobytes()).hexdigest()[:16]]
            for name, info in gguf.tensors.items()
        }


def differences(found: dict[str, list[str]], expected: dict[str, list[str]]) -> dict[str, object]:
    """The tensors that are not as expected."""
    pairs = {name: (found.get(name), expected.get(name)) for name in found | expected}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@pytest.mark.parametrize("type", DENSE)
def test_dense(type: str, tmp_path: Path) -> None:
    done = run_llmkit("quantize", str(TINY / "llama-dense.gguf"), str(tmp_path / "out.gguf"), type)
    assert done.returncode == 0, done.stderr
    assert not differences(written(tmp_path / "out.gguf"), DENSE[type])


@pytest.mark.skipif(SKIP_SLOW, reason="quantises a real model")
def test_a_real_model(real_model: Callable[[str], Path], tmp_path: Path) -> None:
    half = tmp_path / "f16.gguf"
    source = str(real_model("smollm2-135m"))
    assert run_llmkit("quantize", "--allow-requantize", source, str(half), "F16").returncode == 0
    for type in ("Q8_0", "Q4_K_M"):
        done = run_llmkit("quantize", str(half), str(tmp_path / "out.gguf"), type)
        assert done.returncode == 0, done.stderr
        assert not differences(written(tmp_path / "out.gguf"), SMOLLM2[type])
