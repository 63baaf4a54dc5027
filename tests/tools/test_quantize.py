"""`llmkit quantize` as a command: where it writes, what it says."""

import json
import os
from pathlib import Path

import pytest

from tests.make_models import TinyModel, make_model
from tests.tools.in_process import run_llmkit


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Rows of 96 fit no K-quant."""
    return make_model(tmp_path / "m.gguf", TinyModel(n_layer=1, n_embd=96, n_ff=256, head_dim=24))


def test_lines(model: Path, tmp_path: Path) -> None:
    """llama-quantize's lines, word for word (recorded with b11434)."""
    done = run_llmkit("quantize", "-v", str(model), str(tmp_path / "o.gguf"), "Q4_K_M", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert f"quantizing '{model}' to '{tmp_path}/o.gguf' as Q4_K_M using 1 threads" in lines
    assert (
        "[   4/  12] blk.0.attn_k.weight                  - [    96,     48,      1,      1], "
        "type =    f32, converting to q5_0 .. size =     0.02 MiB ->     0.00 MiB"
    ) in lines
    assert (
        "[   2/  12] output_norm.weight                   - [    96,      1,      1,      1], "
        "type =    f32, size =    0.000 MiB"
    ) in lines
    assert (
        "warning: blk.0.attn_k.weight                  - ncols     96 not divisible by 256 "
        "(required for type    q4_K) -> falling back to    q5_0"
    ) in lines
    assert any(line.startswith("warning: 7 of 12 tensor(s) required fallback quantization, ") for line in lines)
    out = done.stdout.splitlines()
    assert out[0].startswith("model size  = ")
    assert out[1].startswith("quant size  = ")
    assert out[2].startswith("total time  = ")


def test_dry_run(model: Path, tmp_path: Path) -> None:
    done = run_llmkit("quantize", "--dry-run", str(model), "q8_0")
    assert done.returncode == 0
    assert "(q8_0)" in done.stdout
    assert "quant size" in done.stdout
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_json(model: Path, tmp_path: Path) -> None:
    done = run_llmkit("quantize", "--json", "-q", str(model), str(tmp_path / "o.gguf"), "Q8_0")
    found = json.loads(done.stdout)
    assert found["outputs"] == [str(tmp_path / "o.gguf")]
    assert (found["file_type"], found["n_tensors"], found["n_fallback"]) == ("Q8_0", 12, 0)
    assert sum(tensor["bytes"] for tensor in found["tensors"]) == found["quant_bytes"]
    by_name = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert (by_name["blk.0.attn_k.weight"]["from"], by_name["blk.0.attn_k.weight"]["to"]) == ("f32", "q8_0")


def test_names(model: Path, tmp_path: Path) -> None:
    """Without OUT the file lies beside the model; a number is a type."""
    assert run_llmkit("quantize", str(model), "7").returncode == 0
    assert (tmp_path / "ggml-model-Q8_0.gguf").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("m.gguf",), "the file type is missing"),
        (("", "Q8_0"), "name is empty"),
        (("m.gguf", "", "Q8_0"), "name is empty"),
        (("m.gguf", "o.gguf"), "missing file type"),
        (("m.gguf", "o.gguf", "Q9"), "invalid file type 'Q9'"),
        (("m.gguf", "o.gguf", "NVFP4"), "can be read but not made"),
        (("m.gguf", "o.gguf", "Q8_0", "x"), "invalid nthread"),
        (("m.gguf", "o.gguf", "Q8_0", "1", "2"), "too many arguments"),
        (("--include-weights", "a", "--exclude-weights", "b", "m.gguf", "o.gguf", "Q8_0"), "exclude each other"),
        (("--include-weights", "a", "m.gguf", "o.gguf", "Q8_0"), "--imatrix"),
        (("--token-embedding-type", "q4_K", "m.gguf", "o.gguf", "Q8_0"), "rows of 96 do not fit q4_K"),
        (("--output-tensor-type", "iq2_xs", "m.gguf", "o.gguf", "F16"), "rows of 96 do not fit iq2_xs"),
        (("--split", "--pure", "m.gguf", "o"), "leave the tensors as they are"),
        (("--merge", "--tensor-type", "a=f16", "m.gguf", "o"), "leave the tensors as they are"),
        (("--max-buffer-size", "0", "m.gguf", "o.gguf", "Q8_0"), "--max-buffer-size"),
        (("--split-max-size", "1G", "m.gguf", "o.gguf", "Q8_0"), "--split"),
        (("--imatrix", "m.gguf", "m.gguf", "o.gguf", "Q8_0"), "is no importance matrix"),
        (("no.gguf", "o.gguf", "Q8_0"), "there is no such file"),
        (("--output-tensor-type", "x", "m.gguf", "o.gguf", "Q8_0"), "invalid tensor type"),
        (("-q", "-v", "m.gguf", "o.gguf", "Q8_0"), "exclude each other"),
    ],
)
def test_wrong_use(
    arguments: tuple[str, ...], says: str, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_llmkit("quantize", *arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_strict(model: Path, tmp_path: Path) -> None:
    done = run_llmkit("quantize", "--strict", str(model), str(tmp_path / "o.gguf"), "Q4_K_M")
    assert done.returncode == 1
    assert "7 of 12 tensor(s) required fallback quantization" in done.stderr
    assert os.listdir(tmp_path) == ["m.gguf"]
    assert run_llmkit("quantize", "--strict", str(model), str(tmp_path / "o.gguf"), "Q8_0").returncode == 0


def test_embeddings_that_cannot_be_made_without_importance(tmp_path: Path) -> None:
    """Refused before a byte is written, by the tensor's name; a dry run warns."""
    model = make_model(tmp_path / "m.gguf", TinyModel(n_layer=1, n_embd=256, n_ff=256))
    arguments = ("--token-embedding-type", "iq2_xs", str(model), str(tmp_path / "o.gguf"), "Q8_0")
    done = run_llmkit("quantize", *arguments)
    assert done.returncode == 1
    assert "requires an importance matrix: tensor 'token_embd.weight', of type iq2_xs" in done.stderr
    assert "will require an imatrix" in run_llmkit("quantize", "--dry-run", *arguments).stderr
