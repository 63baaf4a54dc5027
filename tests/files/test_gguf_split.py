"""Models in several files are opened as one, and every way in which parts do not belong together has a name."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from llmkit.errors import LlmkitError, MetadataError, SplitError, TruncatedFileError
from llmkit.files.gguf_reader import open_gguf
from llmkit.files.gguf_split import parse_part_name, part_path
from llmkit.files.gguf_writer import TensorData, write_gguf
from llmkit.models.model import load_model
from tests.engine_runs import context, prefill, random_ids
from tests.make_models import TinyModel, build, make_model

N = 3


def split(folder: Path, model: TinyModel, name: str = "m", count: int = N) -> list[Path]:
    """The model in `count` files, the metadata in the first, as llama-gguf-split makes them."""
    metadata, tensors = build(model)
    paths = [part_path(folder / name, i + 1, count) for i in range(count)]
    for i, path in enumerate(paths):
        write_part(path, metadata if i == 0 else {}, tensors[i::count], i, count, len(tensors))
    return paths


def write_part(
    path: Path, metadata: Mapping[str, object], tensors: list[TensorData], no: int, count: int, n_tensors: int
) -> None:
    keys = {"split.no": np.uint16(no), "split.count": np.uint16(count), "split.tensors.count": np.int32(n_tensors)}
    write_gguf(path, {**metadata, **keys}, tensors)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return split(tmp_path, TinyModel())


def refusal(path: Path, kind: type[LlmkitError] = SplitError) -> str:
    with pytest.raises(LlmkitError) as caught:
        open_gguf(path)
    assert type(caught.value) is kind, caught.value.message
    assert caught.value.hint
    return f"{caught.value.message} {caught.value.hint}"


def test_names() -> None:
    path = part_path(Path("/a/b-c.d"), 2, 13)
    assert path == Path("/a/b-c.d-00002-of-00013.gguf")
    name = parse_part_name(path)
    assert name is not None
    assert (name.prefix, name.number, name.count) == (Path("/a/b-c.d"), 2, 13)
    for other in ("m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-1-of-3.gguf", "-00001-of-00003.gguf"):
        assert parse_part_name(Path(other)) is None, other


def test_the_parts_are_one_model(tmp_path: Path, parts: list[Path]) -> None:
    with open_gguf(make_model(tmp_path / "whole.gguf")) as whole, open_gguf(parts[0]) as file:
        assert file.tensors.keys() == whole.tensors.keys()
        for name in whole.tensors:
            assert np.array_equal(file.tensor_bytes(name), whole.tensor_bytes(name)), name
        assert {info.part for info in file.tensors.values()} == set(range(N))
        assert file.n_bytes == sum(path.stat().st_size for path in parts)
        assert file.paths == parts


def test_logits_are_those_of_the_whole_file(tmp_path: Path, parts: list[Path]) -> None:
    ids, rows = random_ids(40, 100, seed=1), []
    for path in (parts[0], make_model(tmp_path / "whole.gguf")):
        with context(path) as ctx:
            rows.append(prefill(ctx, ids, 40))
    np.testing.assert_array_equal(*rows)


def test_a_change_in_any_part_changes_the_fingerprint(parts: list[Path]) -> None:
    found = {load_model(parts[0]).fingerprint()}
    for path in parts:
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(data)
        found.add(load_model(parts[0]).fingerprint())
    assert len(found) == N + 1


def test_one_part_of_one_is_a_whole_file(tmp_path: Path) -> None:
    metadata, tensors = build(TinyModel())
    write_part(tmp_path / "any name.gguf", metadata, tensors, 0, 1, len(tensors))
    assert len(open_gguf(tmp_path / "any name.gguf").tensors) == len(tensors)


def test_another_part_than_the_first(parts: list[Path]) -> None:
    message = refusal(parts[1])
    assert "part 2 of 3" in message
    assert str(parts[0]) in message


def test_a_missing_part(parts: list[Path]) -> None:
    parts[2].unlink()
    assert parts[2].name in refusal(parts[0])


def test_a_first_part_under_another_name(tmp_path: Path, parts: list[Path]) -> None:
    os.rename(parts[0], tmp_path / "model.gguf")
    assert "-00001-of-00003.gguf" in refusal(tmp_path / "model.gguf")


def test_swapped_parts(tmp_path: Path, parts: list[Path]) -> None:
    os.rename(parts[1], tmp_path / "x")
    os.rename(parts[2], parts[1])
    os.rename(tmp_path / "x", parts[2])
    assert "split.no is 2, not 1" in refusal(parts[0])


def test_a_part_of_a_split_into_another_number(tmp_path: Path, parts: list[Path]) -> None:
    other = split(tmp_path, TinyModel(), "other", 4)
    os.replace(other[1], parts[1])
    assert "split.count is 4, not 3" in refusal(parts[0])


def test_a_part_of_another_model(tmp_path: Path, parts: list[Path]) -> None:
    other = split(tmp_path, TinyModel(n_layer=3), "other")
    os.replace(other[1], parts[1])
    assert "split.tensors.count" in refusal(parts[0])


def test_a_part_that_names_another_architecture(parts: list[Path]) -> None:
    _, tensors = build(TinyModel())
    write_part(parts[1], {"general.architecture": "gemma"}, tensors[1::N], 1, N, len(tensors))
    assert "gemma" in refusal(parts[0])


def test_a_whole_model_in_a_part_s_place(parts: list[Path]) -> None:
    make_model(parts[1])
    assert "split.count is missing" in refusal(parts[0])


def test_tensors_in_two_parts_and_in_none(parts: list[Path]) -> None:
    _, tensors = build(TinyModel())
    write_part(parts[1], {}, tensors[0::N], 1, N, len(tensors))
    assert "in an earlier part too" in refusal(parts[0])
    write_part(parts[1], {}, [], 1, N, len(tensors))
    assert f"{len(tensors)} are announced" in refusal(parts[0])


@pytest.mark.parametrize("n", [0, 3, 30, 200, -1])
def test_a_truncated_part(parts: list[Path], n: int) -> None:
    content = parts[1].read_bytes()
    parts[1].write_bytes(content[:n])
    with pytest.raises(LlmkitError, match=parts[1].name):
        open_gguf(parts[0])
    if n > 4:
        refusal(parts[0], TruncatedFileError)


@pytest.mark.parametrize(
    ("keys", "kind", "says"),
    [
        ({"split.no": np.uint16(3)}, SplitError, "part 4 of 3"),
        ({"split.count": np.uint32(2**31)}, SplitError, "cannot be"),
        ({"split.count": "3"}, MetadataError, "split.count"),
        ({"split.no": np.float32(0)}, MetadataError, "split.no"),
        ({"split.tensors.count": np.int32(-1)}, MetadataError, "split.tensors.count"),
    ],
)
def test_impossible_keys(parts: list[Path], keys: dict[str, object], kind: type[LlmkitError], says: str) -> None:
    write_gguf(parts[0], {"split.no": np.uint16(0), "split.count": np.uint16(N), **keys})
    assert says in refusal(parts[0], kind)


@pytest.mark.parametrize("key", ["split.no", "split.tensors.count"])
def test_missing_keys(parts: list[Path], key: str) -> None:
    keys = {"split.no": np.uint16(0), "split.count": np.uint16(N), "split.tensors.count": np.int32(1)}
    del keys[key]  # type: ignore[arg-type]
    write_gguf(parts[0], keys)
    assert key in refusal(parts[0], MetadataError)
