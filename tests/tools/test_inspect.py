"""llmkit inspect: what it says about sound files, about those that do not run, and about hostile ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.cli import main
from llmkit.files.ggml_types import TYPE_IDS
from llmkit.files.gguf_writer import TensorData, write_gguf
from tests.files.raw_gguf import STRING, array, entry, gguf, string
from tests.files.test_gguf_split import split
from tests.make_models import TinyModel, build, make_model
from tests.paths import VOCAB, need_shared

Out = pytest.CaptureFixture[str]


def run(capsys: Out, *args: object) -> str:
    assert main(["inspect", *map(str, args)]) == 0
    return capsys.readouterr().out


def as_json(capsys: Out, *args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(capsys, "--json", *args))
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "m.gguf", type="Q8_0", tokenizer="spm")


def test_a_model_as_json(model: Path, capsys: Out) -> None:
    found = as_json(capsys, "-m", model, "-c", 64)
    assert found["files"] == [str(model)]
    assert found["architecture"] == "llama"
    assert (found["runs"], found["why_not"], found["text"]) == (True, "", True)
    tensors = {t["name"]: t for t in found["tensors"]}
    q = tensors["blk.0.attn_q.weight"]
    assert (q["shape"], q["type"], q["n_bytes"]) == ([64, 64], "Q8_0", 64 * 64 * 34 // 32)
    assert found["n_params"] == sum(int(np.prod(t["shape"])) for t in found["tensors"])
    assert found["n_tensor_bytes"] == sum(t["n_bytes"] for t in found["tensors"])
    assert found["bits_per_weight"] == pytest.approx(8 * found["n_tensor_bytes"] / found["n_params"])
    types = {t["type"]: t for t in found["types"]}
    assert types["Q8_0"]["bits_per_weight"] == 8.5
    assert sum(t["n_bytes"] for t in types.values()) == found["n_tensor_bytes"]
    memory = found["memory"]
    # 2 layers x (K and V) x 2 heads x 16 dimensions x 64 cells x 2 bytes
    assert sum(kv["n_bytes"] for kv in memory["kv"]) == 2 * 2 * 2 * 16 * 64 * 2
    assert memory["total"] > memory["packed"] > 0


def test_types_of_keys_and_values_count(model: Path, capsys: Out) -> None:
    small, large = (as_json(capsys, "-m", model, "-c", 64, "-ctk", t, "-ctv", t)["memory"] for t in ("f16", "f32"))
    assert large["kv"][0]["n_bytes"] == 2 * small["kv"][0]["n_bytes"]


def test_the_text_says_the_same(model: Path, capsys: Out) -> None:
    text = run(capsys, "-m", model)
    for part in (
        "general.architecture",
        "blk.1.ffn_down.weight",
        "Q8_0",
        "8.500",
        "Runs: yes",
        "Text: yes",
        "together",
    ):
        assert part in text, part


def test_long_values_are_cut_unless_asked(tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": "llama", "a": np.arange(100, dtype=np.int32), "b": "x" * 1000})
    cut = {item["key"]: item for item in as_json(capsys, "-m", path)["metadata"]}
    assert (cut["a"]["value"], cut["a"]["n"], cut["a"]["type"]) == (list(range(8)), 100, "ARRAY[INT32]")
    assert (len(cut["b"]["value"]), cut["b"]["n"]) == (200, 1000)
    full = {item["key"]: item for item in as_json(capsys, "-m", path, "--full")["metadata"]}
    assert full["a"]["value"] == list(range(100))
    assert full["b"]["value"] == "x" * 1000
    assert ", ...] (100)" in run(capsys, "-m", path)


def test_a_split_model(tmp_path: Path, capsys: Out) -> None:
    parts = split(tmp_path, TinyModel())
    found = as_json(capsys, "-m", parts[0])
    assert found["files"] == [str(path) for path in parts]
    assert {t["part"] for t in found["tensors"]} == {1, 2, 3}
    assert found["runs"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"general.architecture": "no_such"}, "'no_such' is not supported"),
        ({"general.architecture": 7}, "'general.architecture' has the type UINT32"),
        ({"general.architecture": None}, "'general.architecture' is missing"),
        ({"llama.block_count": 0}, "llama.block_count is 0"),
        ({"llama.block_count": 3}, "blk.2.attn_norm.weight is missing"),
        ({"llama.attention.head_count": 10**6}, "llama.attention.head_count"),
        ({"llama.feed_forward_length": 100}, "has the shape [64, 128]; [64, 100] is expected"),
        ({"llama.rope.scaling.type": "spiral"}, "'spiral'"),
    ],
)
def test_why_a_model_does_not_run(tmp_path: Path, capsys: Out, changes: dict[str, object], says: str) -> None:
    path = make_model(tmp_path / "m.gguf", metadata=changes)
    found = as_json(capsys, "-m", path)
    assert (found["runs"], found["memory"]) == (False, None)
    assert says in found["why_not"]
    assert says in run(capsys, "-m", path)


def test_a_tensor_of_a_type_that_is_known_but_not_run(tmp_path: Path, capsys: Out) -> None:
    metadata, tensors = build(TinyModel())
    kept = [t for t in tensors if t.name != "blk.0.ffn_up.weight"]
    kept.append(TensorData("blk.0.ffn_up.weight", (64, 128), TYPE_IDS["I8"], np.zeros(64 * 128, np.int8)))
    write_gguf(tmp_path / "m.gguf", metadata, kept)
    assert "tensor type 24" in as_json(capsys, "-m", tmp_path / "m.gguf")["why_not"]


def test_nothing_from_a_file_reaches_the_terminal_raw(tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "m.gguf"
    evil = "\x1b[2J\r\n\u202e"
    keys = [entry(f"a{evil}", STRING, string(evil)), entry("b", 9, array(STRING, 1, string(evil.encode() + b"\xff")))]
    path.write_bytes(gguf([*keys, entry("f", 6, np.float32("nan").tobytes())]))
    assert not set(run(capsys, "-m", path)) & {"\x1b", "\r", "\u202e"}
    found = {item["key"]: item["value"] for item in as_json(capsys, "-m", path)["metadata"]}
    assert found["f"] == "nan"
    assert found["b"] == [evil + "\ufffd"]


def test_a_damaged_file_is_an_error(tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + bytes(40))
    assert main(["inspect", "-m", str(path)]) == 1
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("args", [["-c", "-1"], ["-ctk", "f12"], ["-ub", "0"]])
def test_wrong_options(model: Path, capsys: Out, args: list[str]) -> None:
    assert main(["inspect", "-m", str(model), *args]) == 1


@need_shared
@pytest.mark.parametrize("name", ["bert-bge", "llama-spm", "qwen2"])
def test_vocabularies(name: str, capsys: Out) -> None:
    found = as_json(capsys, "-m", VOCAB / f"ggml-vocab-{name}.gguf")
    assert not found["runs"]
    assert "no tensors" in found["why_not"]
    assert found["bits_per_weight"] is None


def test_the_machine(capsys: Out) -> None:
    found = as_json(capsys, "--cpu")
    assert set(found) == {"cpu"}
    cpu = found["cpu"]
    assert cpu["isa"] in ("avx512vnni", "avx2", "neon", "generic")
    assert cpu["n_threads"] >= 1
    assert cpu["numerics_id"]
    assert cpu["kernels"].startswith(cpu["cache"])
    text = run(capsys, "--cpu")
    for value in (cpu["isa"], cpu["numba"], cpu["llvmlite"], cpu["kernels"]):
        assert value in text


def test_looking_imports_no_numba(model: Path) -> None:
    code = f"""
import sys
from llmkit.cli import main
assert main(["inspect", "-m", {str(model)!r}]) == 0
assert "numba" not in sys.modules and "llvmlite" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=os.environ)
