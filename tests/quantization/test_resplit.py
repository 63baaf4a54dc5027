"""Cutting and joining: the parts that llama-gguf-split makes, and the same tensors again after joining."""

from pathlib import Path

import pytest

from llmkit.errors import UsageError
from llmkit.files.gguf_reader import open_gguf
from llmkit.quantization.resplit import parse_size
from tests.make_models import TinyModel, make_model
from tests.tools.in_process import run_llmkit


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """21 tensors."""
    return make_model(tmp_path / "m.gguf", TinyModel(n_layer=2))


def tensors(path: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Shapes and bytes by name, in order."""
    with open_gguf(path) as gguf:
        return {name: (info.shape, gguf.tensor_bytes(name).tobytes()) for name, info in gguf.tensors.items()}


def test_split_and_merge(model: Path, tmp_path: Path) -> None:
    done = run_llmkit("quantize", "--split", "--split-max-tensors", "8", str(model), str(tmp_path / "p"))
    assert done.returncode == 0, done.stderr
    parts = [tmp_path / f"p-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    n_tensors = len(tensors(model))
    assert done.stdout.splitlines()[:2] == ["n_split: 3", "split 00001: n_tensors = 8, total_size = 0M"]
    assert f"Writing file {parts[2]} ... done" in done.stdout
    assert f"gguf_split: 3 gguf split written with a total of {n_tensors} tensors." in done.stderr
    assert tensors(parts[0]) == tensors(model)
    joined = tmp_path / "joined.gguf"
    done = run_llmkit("quantize", "--merge", str(parts[0]), str(joined))
    assert done.returncode == 0, done.stderr
    assert f"gguf_merge: {joined} merged from 3 split with {n_tensors} tensors." in done.stderr
    assert tensors(joined) == tensors(model)
    with open_gguf(joined) as gguf, open_gguf(model) as source:
        assert gguf.u32("split.count") == 0
        assert set(source.entries) <= set(gguf.entries)
    again = run_llmkit("quantize", "--merge", str(parts[0]), str(joined))
    assert again.returncode == 1
    assert "already exists" in again.stderr
    assert not list(tmp_path.glob(".*"))


def test_quantised_parts(model: Path, tmp_path: Path) -> None:
    """Parts are read as one; --keep-split writes as many."""
    run_llmkit("quantize", "--split", "--split-max-tensors", "8", str(model), str(tmp_path / "p"))
    first = str(tmp_path / "p-00001-of-00003.gguf")
    assert run_llmkit("quantize", first, str(tmp_path / "one.gguf"), "Q8_0").returncode == 0
    assert run_llmkit("quantize", "--keep-split", first, str(tmp_path / "k.gguf"), "Q8_0").returncode == 0
    assert run_llmkit("quantize", str(model), str(tmp_path / "whole.gguf"), "Q8_0").returncode == 0
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert sorted(tensors(tmp_path / "k-00001-of-00003.gguf").items()) == sorted(tensors(tmp_path / "one.gguf").items())


def test_limits(model: Path, tmp_path: Path) -> None:
    def split(*options: str) -> tuple[int, str, str]:
        done = run_llmkit("quantize", "--split", "--dry-run", *options, str(model), str(tmp_path / "p"))
        return done.returncode, done.stdout, done.stderr

    assert "n_split: 1\n" in split()[1]
    assert "split 00001: n_tensors = 0" in split("--no-tensor-first-split")[1]
    assert "n_split: 1\n" in split("--split-max-size", "1M")[1]
    assert list(tmp_path.glob("p-*")) == []
    for options, says in (
        (("--split-max-size", "1K"), "supported units"),
        (("--split-max-size", "0M"), "invalid size"),
        (("--split-max-size", "1M", "--split-max-tensors", "2"), "not both"),
        (("--split-max-tensors", "0"), "at least 1"),
        (("--merge",), "not both"),
    ):
        code, _, err = split(*options)
        assert code == 1
        assert says.lower() in err.lower()
    assert [parse_size(text) for text in ("3M", "2G")] == [3_000_000, 2_000_000_000]
    for text in ("", "M", "-1M", "1.5G", "1m"):
        with pytest.raises(UsageError):
            parse_size(text)


def test_a_tensor_that_is_too_large(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m.gguf", TinyModel(n_layer=1, n_embd=512, n_ff=1024, n_vocab=1024))
    done = run_llmkit("quantize", "--split", "--split-max-size", "1M", str(model), str(tmp_path / "p"))
    assert done.returncode == 1
    assert "one of splits have 0 tensors" in done.stderr
    assert list(tmp_path.glob("p-*")) == []


def test_deleting_the_parts(model: Path, tmp_path: Path) -> None:
    run_llmkit("quantize", "--split", "--split-max-tensors", "8", str(model), str(tmp_path / "p"))
    first = str(tmp_path / "p-00001-of-00003.gguf")
    done = run_llmkit("quantize", "--merge", "--delete-splits", first, str(tmp_path / "joined.gguf"))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("p-*")) == []
    assert tensors(tmp_path / "joined.gguf") == tensors(model)
    whole = run_llmkit("quantize", "--merge", str(model), str(tmp_path / "x.gguf"))
    assert whole.returncode == 1
    assert "split.count" in whole.stderr
