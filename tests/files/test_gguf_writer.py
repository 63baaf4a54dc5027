"""What is written is what is read, by us and by the gguf package, and a failure leaves nothing behind."""

from pathlib import Path

import numpy as np
import pytest

from llmkit.errors import OutputError
from llmkit.files.ggml_types import F32, TYPE_IDS
from llmkit.files.gguf_reader import open_gguf
from llmkit.files.gguf_writer import TensorData, write_gguf
from tests.files.test_gguf_reader import assert_equal_to_gguf_package
from tests.make_models import make_model

METADATA = {
    "general.architecture": "llama",
    "int": 7,
    "negative": -7,
    "large": 1 << 40,
    "float": 0.5,
    "bool": True,
    "half": np.uint16(9),
    "text": "héllo",
    "raw": b"abc",
    "strings": ["a", "", "bc"],
    "ints": [1, -2],
    "floats": [0.5, 1.5],
    "bools": [True, False],
    "array": np.array([1, 2], dtype=np.uint64),
    "empty": [],
}
KINDS = [
    "STRING", "UINT32", "INT32", "UINT64", "FLOAT32", "BOOL", "UINT16", "STRING", "STRING", "ARRAY[STRING]",
    "ARRAY[INT32]", "ARRAY[FLOAT32]", "ARRAY[BOOL]", "ARRAY[UINT64]", "ARRAY[STRING]",
]  # fmt: skip
TENSORS = [
    TensorData("first", (3,), F32, np.array([1, 2, 3], dtype=np.float32)),
    TensorData("second", (32, 2), TYPE_IDS["Q8_0"], lambda: np.arange(68, dtype=np.uint8)),
    TensorData("third", (2, 2, 1, 1), TYPE_IDS["F16"], np.ones((2, 2), dtype=np.float16)),
]


@pytest.mark.parametrize("alignment", [None, 8, 4096])
def test_a_written_file_reads_the_same(tmp_path: Path, alignment: int | None) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, METADATA | ({"general.alignment": alignment} if alignment else {}), TENSORS)
    with open_gguf(path) as file:
        assert [file.kind(key) for key in METADATA] == KINDS
        assert [file.metadata[key] for key in ("int", "negative", "large", "float", "bool", "half", "text", "raw")] == [
            7, -7, 1 << 40, 0.5, True, 9, "héllo", "abc",
        ]  # fmt: skip
        assert file.strings("strings").to_list() == ["a", "", "bc"]
        assert file.alignment == (alignment or 32)
        assert file.tensor_bytes("first").view(np.float32).tolist() == [1, 2, 3]
        assert file.tensor_bytes("second").tolist() == list(range(68))
        assert file.tensors["third"].shape == (2, 2, 1, 1)
        assert file.n_bytes % file.alignment == 0
    assert_equal_to_gguf_package(path)


def test_a_copy_of_every_entry_and_tensor_is_the_same_file(tmp_path: Path) -> None:
    path = make_model(tmp_path / "a.gguf", tokenizer="spm", arch="gemma3", window_pattern=(1, 0), type="Q4_0")
    with open_gguf(path) as file:
        tensors = [TensorData(t.name, t.shape, t.type, file.tensor_bytes(t.name)) for t in file.tensors.values()]
        write_gguf(tmp_path / "b.gguf", file.entries, tensors)
    assert (tmp_path / "b.gguf").read_bytes() == path.read_bytes()


def test_a_file_without_tensors(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {"general.architecture": "llama"})
    assert open_gguf(tmp_path / "a.gguf").tensors == {}


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"old")

    def fails() -> np.ndarray:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, {}, [TENSORS[0], TensorData("x", (1,), F32, fails)])
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.gguf"]


def test_a_full_disk_is_a_named_error(tmp_path: Path) -> None:
    def fails() -> np.ndarray:
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="No space left"):
        write_gguf(tmp_path / "a.gguf", {}, [TensorData("x", (1,), F32, fails)])
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_not_there_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        write_gguf(tmp_path / "no" / "a.gguf", {})


def test_data_of_the_wrong_size_is_our_own_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        write_gguf(tmp_path / "a.gguf", {}, [TensorData("x", (2,), F32, np.zeros(1, dtype=np.float32))])


@pytest.mark.parametrize("value", [None, object(), [1, "a"], [1, 2.0], 1 << 64, np.zeros((2, 2))])
def test_what_gguf_cannot_hold_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(TypeError, match="no GGUF"):
        write_gguf(tmp_path / "a.gguf", {"key": value})
