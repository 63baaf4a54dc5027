"""scripts/make_bench_models on a tiny model instead of SmolLM2, with a llama-quantize that copies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.files.ggml_types import type_name
from llmkit.files.gguf_reader import open_gguf
from scripts.bench import make_models
from scripts.bench.make_models import main, to_f16
from scripts.bench.models import CONVERTED, RANDOM, REAL, find_model, made_path
from scripts.bench.peers import LLAMA_CPP
from tests.make_models import make_model
from tests.scripts.fake_peers import install

pytestmark = pytest.mark.usefixtures("peer_cache")


def test_to_f16(tmp_path: Path) -> None:
    """Matrices become F16 with the values that the gguf package gives them, vectors F32; metadata stays."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    source = make_model(
        tmp_path / "m.gguf", type="Q4_1", types={"ffn": "Q8_0", "attn_k": "F32"}, tokenizer="bpe", tied=True
    )
    to_f16(source, tmp_path / "f16.gguf")
    with open_gguf(source) as old, open_gguf(tmp_path / "f16.gguf") as new:
        assert list(new.tensors) == list(old.tensors)
        for name, tensor in new.tensors.items():
            before = old.tensors[name]
            assert tensor.shape == before.shape
            assert type_name(tensor.type) == ("F16" if len(tensor.shape) > 1 else "F32")
            rows = old.tensor_bytes(name).reshape(*reversed(before.shape[1:]), -1)
            values = dequantize(rows, GGMLQuantizationType(before.type)).reshape(-1)
            dtype: Any = np.float16 if len(tensor.shape) > 1 else np.float32
            assert np.array_equal(np.frombuffer(new.tensor_bytes(name).tobytes(), dtype), values.astype(dtype))
        assert new.metadata["general.file_type"] == 1
        assert list(new.metadata["tokenizer.ggml.tokens"]) == list(old.metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]


QUANTIZE = """
    import shutil, sys
    assert sys.argv[3] in ("Q8_0", "Q4_0"), sys.argv
    shutil.copy(sys.argv[1], sys.argv[2])
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny SmolLM2, and small random models."""
    tiny = make_model(tmp_path / "smollm2.gguf", type="Q4_1")
    monkeypatch.setattr(make_models, "find_model", lambda name: tiny)
    monkeypatch.setitem(make_models.RANDOM_SHAPE, "n_embd", 256)
    monkeypatch.setitem(make_models.RANDOM_SHAPE, "n_ff", 256)
    monkeypatch.setitem(make_models.RANDOM_SHAPE, "n_head", 4)
    monkeypatch.setitem(make_models.RANDOM_SHAPE, "n_head_kv", 4)
    monkeypatch.setitem(make_models.RANDOM_SHAPE, "n_vocab", 512)


@pytest.mark.usefixtures("small")
def test_all_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    install(LLAMA_CPP, {"llama-quantize": QUANTIZE})
    assert main([]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == [str(made_path(name)) for name in (*CONVERTED, *RANDOM)]
    assert "making random-q6_k" in err
    for name in (*CONVERTED, *RANDOM):
        assert find_model(name) == made_path(name)
    with open_gguf(made_path("random-q4_k_m")) as file:
        kinds = {name: type_name(tensor.type) for name, tensor in file.tensors.items()}
    # llama-quantize keeps the first and last eighth of the layers, and every third between them.
    for layer, kind in {
        0: "Q6_K",
        1: "Q6_K",
        2: "Q4_K",
        3: "Q4_K",
        4: "Q6_K",
        13: "Q6_K",
        14: "Q6_K",
        15: "Q6_K",
    }.items():
        assert kinds[f"blk.{layer}.ffn_down.weight"] == kinds[f"blk.{layer}.attn_v.weight"] == kind, layer
        assert kinds[f"blk.{layer}.ffn_up.weight"] == "Q4_K"


@pytest.mark.usefixtures("small")
def test_what_is_there_stays(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["smollm2-f16", "-q"]) == 0
    made = made_path("smollm2-f16").stat().st_mtime_ns
    assert main(["smollm2-f16"]) == 0
    assert "making" not in capfd.readouterr().err
    assert made_path("smollm2-f16").stat().st_mtime_ns == made
    assert main(["smollm2-f16", "--force", "-q"]) == 0
    assert made_path("smollm2-f16").stat().st_mtime_ns != made


@pytest.mark.usefixtures("small")
def test_failures(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["smollm2-q8_0"]) == 1
    assert "scripts/build_peers" in capfd.readouterr().err
    install(LLAMA_CPP, {"llama-quantize": "import sys; open(sys.argv[2], 'w'); sys.exit('out of luck')"})
    assert main(["smollm2-q8_0"]) == 1
    assert "out of luck" in capfd.readouterr().err
    assert {path.name for path in made_path("x").parent.iterdir()} == {"smollm2-f16.gguf"}
    assert main(["gemma-f16"]) == 1
    assert "no model 'gemma-f16'" in capfd.readouterr().err


def test_a_model_that_is_not_there_names_the_script() -> None:
    from llmkit.errors import ModelNotFoundError

    with pytest.raises(ModelNotFoundError) as caught:
        find_model("smollm2-q8_0")
    assert "scripts/make_bench_models" in caught.value.hint
    with pytest.raises(ModelNotFoundError) as caught:
        find_model("nowhere.gguf")
    assert "smollm2" in caught.value.hint
    assert set(REAL) == {"smollm2", "gemma", "qwen"}
