"""Importance matrices: what is written is read, both kinds; hostile files get a named error."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmkit.errors import ImatrixError, LlmkitError, ModelNotFoundError
from llmkit.files.gguf_writer import TensorData, write_gguf
from llmkit.files.imatrix_file import Imatrix, ImatrixEntry, read_imatrix, write_imatrix
from llmkit.quantization.importance import load_importance

SUMS = np.arange(12, dtype=np.float32).reshape(3, 4)
COUNTS = np.array([100, 0, 7], np.float32)
ONE = Imatrix({"b": ImatrixEntry(SUMS, COUNTS), "a": ImatrixEntry(SUMS[:1], COUNTS[:1])}, ["x.txt", "y.txt"], 5, 64)
METADATA = {"imatrix.datasets": ["x"], "imatrix.chunk_count": 1, "imatrix.chunk_size": 512}


def test_gguf_and_back(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.gguf", ONE)
    found = read_imatrix(tmp_path / "i.gguf")
    assert list(found.entries) == ["a", "b"]
    assert (found.datasets, found.n_chunks, found.chunk_size, found.is_legacy) == (["x.txt", "y.txt"], 5, 64, False)
    assert np.array_equal(found.entries["b"].sums, SUMS)
    assert np.array_equal(found.entries["b"].counts, COUNTS)


def test_legacy_by_hand(tmp_path: Path) -> None:
    """The bytes, as llama.cpp's imatrix writes them: means times calls, ones where nothing was seen."""
    write_imatrix(tmp_path / "i.dat", replace(ONE, is_legacy=True))
    raw = (tmp_path / "i.dat").read_bytes()
    assert raw[:4] == struct.pack("<i", 2)
    assert raw[4:17] == struct.pack("<i", 1) + b"a" + struct.pack("<ii", 2, 4)
    found = read_imatrix(tmp_path / "i.dat")
    assert found.is_legacy
    assert (found.datasets, found.n_chunks) == (["y.txt"], 5)
    means = np.where(COUNTS[:, None] > 0, SUMS / np.maximum(COUNTS[:, None], 1), 1)
    assert np.allclose(found.entries["b"].sums.reshape(3, 4), 2 * means)
    assert found.entries["b"].counts.tolist() == [2]
    weights, _ = load_importance(str(tmp_path / "i.dat"), [], [])
    assert np.allclose(weights.weights["b"].reshape(3, 4), means)


def test_weights_of_importance(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.gguf", ONE)
    importance, _ = load_importance(str(tmp_path / "i.gguf"), [], [])
    assert np.array_equal(importance.weights["b"][1], np.ones(4))
    assert np.array_equal(importance.weights["b"][2], SUMS[2] / np.float32(7))
    assert importance.metadata["quantize.imatrix.dataset"] == b"x.txt"
    assert importance.metadata["quantize.imatrix.entries_count"] == 2
    assert set(load_importance(str(tmp_path / "i.gguf"), ["a"], [])[0].weights) == {"a"}
    none, _ = load_importance(str(tmp_path / "i.gguf"), ["c"], [])
    assert not none
    assert not none.metadata


def test_every_prefix_of_a_legacy_file(tmp_path: Path) -> None:
    """Cut anywhere in its entries it is refused; the rest is optional, as in old files."""
    write_imatrix(tmp_path / "i.dat", replace(ONE, is_legacy=True))
    raw = (tmp_path / "i.dat").read_bytes()
    n_optional = 4 + 4 + len("y.txt")
    for n in range(len(raw)):
        (tmp_path / "cut").write_bytes(raw[:n])
        if n < len(raw) - n_optional:
            with pytest.raises(ImatrixError):
                read_imatrix(tmp_path / "cut")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0\0\0",
        struct.pack("<i", -1),
        struct.pack("<ii", 1, -5),
        struct.pack("<ii", 1, 1 << 30),
        struct.pack("<ii", 1 << 30, 1) + b"a" + struct.pack("<ii", 1, 1 << 30),
        struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, -1),
        struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, 0),
        b"%PDF-1.4 and more",
    ],
)
def test_hostile(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "i").write_bytes(raw)
    with pytest.raises(ImatrixError):
        read_imatrix(tmp_path / "i")


@pytest.mark.parametrize(
    ("metadata", "tensors"),
    [
        ({}, [("a.in_sum2", (4, 1), 0), ("a.counts", (1, 1), 0)]),
        (METADATA, []),
        (METADATA, [("a.in_sum2", (4, 1), 0)]),
        (METADATA, [("a.counts", (1, 1), 0)]),
        (METADATA, [("a.in_sum2", (4, 1), 1), ("a.counts", (1, 1), 0)]),
        (METADATA, [("a.in_sum2", (4, 1), 0), ("a.counts", (3, 1), 0)]),
        (METADATA, [("a.weight", (4, 1), 0)]),
    ],
)
def test_hostile_gguf(
    metadata: dict[str, object], tensors: list[tuple[str, tuple[int, ...], int]], tmp_path: Path
) -> None:
    data = [TensorData(name, shape, type, np.zeros(int(np.prod(shape)) * (4 if type == 0 else 2), np.uint8))
            for name, shape, type in tensors]  # fmt: skip
    write_gguf(tmp_path / "i.gguf", metadata, data)
    with pytest.raises(LlmkitError):
        read_imatrix(tmp_path / "i.gguf")


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        read_imatrix(tmp_path / "no")
    with pytest.raises(ImatrixError):
        read_imatrix(tmp_path)


def test_no_regular_file(tmp_path: Path) -> None:
    """A device is refused before it is read: one may never end."""
    for path, what in ((Path("/dev/null"), "a device or a pipe"), (tmp_path, "a directory")):
        with pytest.raises(ImatrixError, match=f"is {what}, not a file"):
            read_imatrix(path)
