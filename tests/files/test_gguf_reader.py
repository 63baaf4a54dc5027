"""What the reader hands out: equal to the gguf package's reading, typed on request, fast on a large vocabulary."""

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.errors import MetadataError
from llmkit.files.ggml_types import GGML_TYPES
from llmkit.files.gguf_reader import GgufFile, open_gguf
from llmkit.files.string_array import StringArray
from tests.files.raw_gguf import (
    ARRAY,
    BOOL,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    STRING,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    array,
    entry,
    gguf,
    string,
)
from tests.make_blocks import TYPES
from tests.make_models import make_model
from tests.paths import TINY, VOCAB, need_shared


def assert_equal_to_gguf_package(path: Path, n_strings: int = 1 << 30) -> None:
    """Same version, metadata (values and types) and tensors (name, shape, type, bytes) as gguf.GGUFReader gives."""
    from gguf import GGUFReader

    theirs = GGUFReader(path)
    with open_gguf(path) as ours:
        fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        for key, field in fields.items():
            assert_same_value(ours, key, field, n_strings)
        assert [*ours.tensors] == [tensor.name for tensor in theirs.tensors]
        for tensor, info in zip(theirs.tensors, ours.tensors.values(), strict=True):
            assert info.shape == tuple(int(n) for n in tensor.shape)
            assert (info.type, info.offset, info.n_bytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
            assert info.n_elements == tensor.n_elements
            assert ours.tensor_bytes(tensor.name).tobytes() == tensor.data.tobytes()


def assert_same_value(ours: GgufFile, key: str, field: Any, n_strings: int) -> None:
    value = ours.metadata[key]
    if isinstance(value, StringArray):
        assert len(value) == len(field.data)
        n = min(n_strings, len(value))
        assert value[:n] == field.contents(slice(0, n))
        assert ours.kind(key) == "ARRAY[STRING]"
    elif isinstance(value, np.ndarray):
        assert value.tolist() == (field.contents() if len(field.data) else [])
    else:
        assert value == field.contents()
        assert ours.kind(key) == field.types[0].name


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("tokenizer", ["bpe", "spm", "test"])
def test_equal_to_the_gguf_package_on_made_models(tmp_path: Path, arch: str, tokenizer: str) -> None:
    assert_equal_to_gguf_package(make_model(tmp_path / "m.gguf", arch=arch, tokenizer=tokenizer, type="Q8_0"))


@need_shared
@pytest.mark.parametrize("name", ["llama-dense", "qwen2-dense", "qwen3-dense", "gemma3-dense", "llama-moe"])
def test_equal_to_the_gguf_package_on_tiny_models(name: str) -> None:
    assert_equal_to_gguf_package(TINY / f"{name}.gguf")


@need_shared
@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "bert-bge"])
def test_equal_to_the_gguf_package_on_vocabularies(name: str) -> None:
    assert_equal_to_gguf_package(VOCAB / f"ggml-vocab-{name}.gguf", n_strings=20_000)


def test_the_type_table_is_the_gguf_packages() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    theirs = {int(type): (type.name, *sizes) for type, sizes in GGML_QUANT_SIZES.items()}
    theirs[9] = ("Q8_1", 32, 36)  # the package says 40, from before ggml stored its two sums as f16
    ours = {type.id: (type.name, type.block_size, type.type_size) for type in GGML_TYPES.values()}
    assert {id: ours[id] for id in theirs} == theirs
    assert set(ours) - set(theirs) <= {42}


@pytest.mark.parametrize("type", TYPES)
def test_rows_and_sizes(tmp_path: Path, type: str) -> None:
    path = make_model(tmp_path / "m.gguf", type=type, n_layer=1, n_embd=256, n_ff=512, head_dim=64)
    with open_gguf(path) as file:
        info = file.tensors["blk.0.ffn_up.weight"]
        assert (info.shape, info.type_name, info.n_rows, info.n_elements) == ((256, 512), type, 512, 256 * 512)
        assert info.n_bytes == info.n_rows * info.row_bytes
        assert file.tensor_bytes("blk.0.ffn_up.weight").nbytes == info.n_bytes


def test_data_is_the_whole_file_mapped_read_only(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf")
    with open_gguf(path) as file:
        assert file.maps[0].tobytes() == path.read_bytes()
        assert file.n_bytes == path.stat().st_size
        assert not file.maps[0].flags.writeable
        first = min(file.tensors.values(), key=lambda info: info.offset)
        assert file.tensor_address(first.name) == file.maps[0].__array_interface__["data"][0] + first.offset
        kept = file.tensor_bytes("output_norm.weight")
    assert file.n_bytes == 0
    assert kept.view(np.float32).mean() == pytest.approx(1, abs=0.1)  # the mapping lives as long as its views


VALUES = {
    "u8": (UINT8, b"\xff", 255),
    "i8": (INT8, b"\xff", -1),
    "u16": (UINT16, b"\xff\xff", 65535),
    "u32": (UINT32, b"\xff" * 4, (1 << 32) - 1),
    "i32": (INT32, b"\xfe\xff\xff\xff", -2),
    "u64": (UINT64, b"\0\0\0\0\1\0\0\0", 1 << 32),
    "i64": (INT64, b"\xff" * 8, -1),
    "f32": (FLOAT32, struct.pack("<f", 0.5), 0.5),
    "f64": (FLOAT64, struct.pack("<d", 0.1), 0.1),
    "nan": (FLOAT32, struct.pack("<f", float("-inf")), float("-inf")),
    "yes": (BOOL, b"\1", True),
    "text": (STRING, string("héllo\0"), "héllo\0"),
    "broken": (STRING, string(b"a\xffb"), "a\ufffdb"),
}


@pytest.fixture
def every(tmp_path: Path) -> GgufFile:
    """A file with a value of every kind."""
    entries = [entry(key, type, raw) for key, (type, raw, _) in VALUES.items()]
    entries.append(entry("numbers", ARRAY, array(INT32, 3, struct.pack("<3i", 1, -2, 3))))
    entries.append(entry("bools", ARRAY, array(BOOL, 2, b"\1\0")))
    entries.append(entry("strings", ARRAY, array(STRING, 2, string("a") + string("bc"))))
    entries.append(entry("nothing", ARRAY, array(UINT32, 0, b"")))
    path = tmp_path / "every.gguf"
    path.write_bytes(gguf(entries))
    return open_gguf(path)


def test_every_type_of_value(every: GgufFile) -> None:
    for key, (_, _, value) in VALUES.items():
        assert every.metadata[key] == value
        assert type(every.metadata[key]) is type(value)
    assert every.numbers("numbers").tolist() == [1, -2, 3]
    assert every.numbers("numbers").flags.aligned
    assert not every.numbers("numbers").flags.writeable
    assert every.numbers("bools").tolist() == [True, False]
    assert every.strings("strings").to_list() == ["a", "bc"]
    assert every.strings("nothing").to_list() == []
    assert len(every.array("strings")) == 2
    assert every.tensors == {}


def test_getters_take_what_fits(every: GgufFile) -> None:
    assert every.u32("u8") == 255
    assert every.u32("u32") == (1 << 32) - 1
    assert every.f32("f64") == 0.1
    assert every.bool("yes") is True
    assert every.str("text") == "héllo\0"


@pytest.mark.parametrize(
    ("getter", "key", "says"),
    [
        ("u32", "i8", "'i8' is -1; an unsigned 32-bit integer"),
        ("u32", "u64", "'u64' is 4294967296"),
        ("u32", "f32", "'f32' has the type FLOAT32; an unsigned integer"),
        ("u32", "yes", "BOOL"),
        ("u32", "text", "STRING"),
        ("f32", "u8", "UINT8; a float"),
        ("f32", "nan", "'nan' is -inf; a finite number"),
        ("str", "u8", "UINT8; a string"),
        ("bool", "u8", "UINT8; a bool"),
        ("array", "u8", "UINT8; an array"),
        ("numbers", "strings", r"ARRAY\[STRING\]; an array of numbers"),
        ("strings", "numbers", r"ARRAY\[INT32\]; an array of strings"),
        ("strings", "text", "STRING; an array of strings"),
    ],
)
def test_getters_refuse_other_types(every: GgufFile, getter: str, key: str, says: str) -> None:
    with pytest.raises(MetadataError, match=says):
        getattr(every, getter)(key)
    with pytest.raises(MetadataError, match=says):
        getattr(every, getter)(key, None)


@pytest.mark.parametrize("getter", ["u32", "f32", "str", "bool", "array", "numbers", "strings"])
def test_a_missing_key_is_an_error_unless_there_is_a_default(every: GgufFile, getter: str) -> None:
    with pytest.raises(MetadataError, match=r"'no\.such' is missing"):
        getattr(every, getter)("no.such")
    assert getattr(every, getter)("no.such", None) is None
    assert getattr(every, getter)("no.such", 7) == 7


def test_a_large_vocabulary_opens_within_its_budget(tmp_path: Path) -> None:
    """Case 15: 262,144 tokens and 500,000 merges. Measured: 0.03 s to open, 0.15 s to list; the budget is generous."""
    tokens = array(STRING, 262_144, b"".join(string(f"token{i}") for i in range(262_144)))
    merges = array(STRING, 500_000, b"".join(string(f"to{i} ken{i}") for i in range(500_000)))
    path = tmp_path / "vocab.gguf"
    path.write_bytes(gguf([entry("tokens", ARRAY, tokens), entry("merges", ARRAY, merges)]))
    start = time.process_time()
    with open_gguf(path) as file:
        assert file.strings("tokens").to_list()[262_143] == "token262143"
        assert file.strings("merges").to_list()[499_999] == "to499999 ken499999"
        assert time.process_time() - start < 2.0
