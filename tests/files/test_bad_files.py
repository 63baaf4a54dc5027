"""Every file that is no sound GGUF gives a named error with a sentence and a hint.

What issue 2 lists as bad input, and the cases 10 to 14 and 17 of the shared list.
"""

import io
import os
import pickle
import socket
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from llmkit.errors import (
    LlmkitError,
    MetadataError,
    ModelFileError,
    ModelNotFoundError,
    NotGgufError,
    SplitError,
    TensorError,
    TruncatedFileError,
    UnsupportedError,
    UnsupportedVersionError,
)
from llmkit.files.gguf_reader import open_gguf
from tests.files.raw_gguf import (
    ARRAY,
    BOOL,
    FLOAT32,
    INT32,
    Q4_0,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    array,
    entry,
    gguf,
    string,
    tensor,
)
from tests.make_models import make_model

Write = Callable[[bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return write


def refusal(path: Path, kind: type[LlmkitError]) -> str:
    """The message of the error that opening gives: of exactly this kind, naming the file, with a hint."""
    with pytest.raises(LlmkitError) as caught:
        open_gguf(path)
    assert type(caught.value) is kind, caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 1
    return caught.value.message


def _zip(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(name, b"x")
    return buffer.getvalue()


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        file.addfile(tarfile.TarInfo("model.gguf"))
    return buffer.getvalue()


SAFETENSORS = struct.pack("<Q", 20) + b'{"a":{"dtype":"F32"}' + bytes(64)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"GGU", "only 3 bytes long"),
        (b"abc", "only 3 bytes long"),
        (b"<!DOCTYPE html><html>Sign in</html>", "an HTML page"),
        (b"\xef\xbb\xbf\n  <HTML><body>404</body></HTML>", "an HTML page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML document"),
        (b'{"error": "Entry not found"}', "a JSON text"),
        (b"Entry not found\n", "a text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n", "a Git LFS pointer"),
        (_zip("model.gguf"), "a zip archive"),
        (_zip("archive/data.pkl"), "a PyTorch checkpoint"),
        (pickle.dumps({"a": 1}, protocol=2), "a Python pickle"),
        (SAFETENSORS, "a safetensors file"),
        (_tar(), "a tar archive"),
        (b"\x1f\x8b\x08\x00" + bytes(40), "a gzip archive"),
        (b"tjgg\x03\x00\x00\x00" + bytes(40), "from before GGUF"),
        (b"lmgg" + bytes(40), "from before GGUF"),
        (b"FUGG" + struct.pack(">I", 3) + bytes(40), "big-endian"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (bytes(4096), "filled with zeros"),
        (b"\x01\x02\x03\x04" * 100, "unknown format"),
    ],
)
def test_another_kind_of_file_is_named(write: Write, content: bytes, says: str) -> None:
    assert says in refusal(write(content), NotGgufError)


@pytest.mark.parametrize("version", [0, 1, 4, 0x00030001])
def test_other_versions_are_refused(write: Write, version: int) -> None:
    assert f"version {version};" in refusal(write(gguf(version=version)), UnsupportedVersionError)


def test_versions_2_and_3_open(write: Write) -> None:
    assert [open_gguf(write(gguf(version=version))).version for version in (2, 3)] == [2, 3]


def test_a_missing_file_is_a_missing_model(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "nothing.gguf", ModelNotFoundError)


def test_a_directory(tmp_path: Path) -> None:
    assert "a directory" in refusal(tmp_path, NotGgufError)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_a_fifo_does_not_hang(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.gguf"
    os.mkfifo(fifo)
    code = f"from llmkit.files.gguf_reader import open_gguf\nopen_gguf({str(fifo)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "NotGgufError" in done.stderr
    assert "a FIFO" in done.stderr


def test_a_socket_and_a_device(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert "a socket" in refusal(tmp_path / "s", NotGgufError)
    assert "a device" in refusal(Path("/dev/null"), NotGgufError)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_an_impossible_path(name: str) -> None:
    with pytest.raises(NotGgufError, match="cannot be read"):
        open_gguf(name)


def test_a_file_without_permission(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(gguf())

    def refuse(*_: object) -> int:  # root, as in a container, could read a file of mode 0
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("llmkit.files.gguf_reader.os.open", refuse)
    assert "ermission" in refusal(path, NotGgufError)


def test_cut_at_every_byte_of_the_header_and_every_page(tmp_path: Path) -> None:
    whole = make_model(tmp_path / "whole.gguf", tokenizer="bpe", n_layer=1, n_embd=32).read_bytes()
    last = max(info.offset + info.n_bytes for info in open_gguf(tmp_path / "whole.gguf").tensors.values())
    part = tmp_path / "part.gguf"
    n_opened = 0
    for n_bytes in [*range(0, 9000, 7), *range(0, last, 4096), last - 1]:
        part.unlink(missing_ok=True)
        part.write_bytes(whole[:n_bytes])
        with pytest.raises(TruncatedFileError if n_bytes > 3 else NotGgufError):
            open_gguf(part)
        n_opened += 1
    assert n_opened > 1000
    part.write_bytes(whole[:last])
    open_gguf(part)


HUGE = [1 << 31, 1 << 32, (1 << 61) + 1, 1 << 63, (1 << 64) - 1]


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize("which", ["n_tensors", "n_entries"])
def test_a_huge_count_in_the_header(write: Write, which: str, count: int) -> None:
    content = gguf([entry("a", UINT8, b"\1")], [tensor()], 32, **{which: count})  # type: ignore[arg-type]
    assert str(count) in refusal(write(content), TruncatedFileError)


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize("type", [UINT8, UINT64, STRING, BOOL])
def test_a_huge_array(write: Write, type: int, count: int) -> None:
    content = gguf([entry("key", ARRAY, array(type, count, bytes(100)))])
    assert str(count) in refusal(write(content), TruncatedFileError)


@pytest.mark.parametrize("length", HUGE)
def test_a_huge_string(write: Write, length: int) -> None:
    raw = struct.pack("<Q", length)
    assert str(length) in refusal(write(gguf([entry("key", STRING, raw + b"abc")])), TruncatedFileError)
    refusal(write(gguf([raw + b"key"], n_entries=1) + bytes(50)), TruncatedFileError)
    two = array(STRING, 2, string("a") + raw)
    refusal(write(gguf([entry("key", ARRAY, two)])), TruncatedFileError)


def test_a_sparse_file_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    for value in (entry("key", STRING, struct.pack("<Q", 1 << 33)), entry("key", ARRAY, array(UINT8, 1 << 33, b""))):
        path.write_bytes(gguf([value]))
        os.truncate(path, 1 << 34)
        assert "behind the first" in refusal(path, MetadataError)
        path.unlink()


def test_arrays_of_arrays(write: Write) -> None:
    bomb = array(ARRAY, 1, b"") * 100_000
    assert "array of arrays" in refusal(write(gguf([entry("key", ARRAY, bomb)])), MetadataError)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (entry("", UINT8, b"\1"), "0 bytes long"),
        (entry("k" * 65536, UINT8, b"\1"), "65536 bytes long"),
        (entry(b"\xff\xfe", UINT8, b"\1"), "UTF-8"),
        (entry("key", 13, bytes(8)), "value type 13"),
        (entry("key", 0xFFFFFFFF, bytes(8)), "value type 4294967295"),
        (entry("key", ARRAY, array(99, 0, b"")), "value type 99"),
        (entry("key", BOOL, b"\2"), "value 2"),
        (entry("key", ARRAY, array(BOOL, 3, b"\0\1\2")), "neither 0 nor 1"),
    ],
)
def test_impossible_metadata(write: Write, value: bytes, says: str) -> None:
    assert says in refusal(write(gguf([value])), MetadataError)


def test_a_key_that_is_there_twice(write: Write) -> None:
    keys = [entry("general.architecture", STRING, string("llama"))] * 2
    assert "twice" in refusal(write(gguf(keys)), MetadataError)


def test_the_order_of_keys_does_not_matter(write: Write) -> None:
    keys = [entry(f"key{i}", UINT32, struct.pack("<I", i)) for i in range(5)]
    keys.append(entry("general.architecture", STRING, string("llama")))
    assert open_gguf(write(gguf(keys))).str("general.architecture") == "llama"


@pytest.mark.parametrize("value", [0, 1, 3, 4, 12, 48, 0x80000000])
def test_a_bad_alignment(write: Write, value: int) -> None:
    content = gguf([entry("general.alignment", UINT32, struct.pack("<I", value))], [tensor()], 32)
    assert f"is {value};" in refusal(write(content), MetadataError)


@pytest.mark.parametrize(
    ("type", "raw"),
    [(INT32, b"\x20\0\0\0"), (UINT64, b"\x20" + bytes(7)), (FLOAT32, bytes(4)), (STRING, string("32"))],
)
def test_an_alignment_of_another_type(write: Write, type: int, raw: bytes) -> None:
    content = gguf([entry("general.alignment", type, raw)], [tensor()], 32)
    assert "UINT32 is expected" in refusal(write(content), MetadataError)


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_a_good_alignment_is_followed(write: Write, alignment: int) -> None:
    key = entry("general.alignment", UINT32, struct.pack("<I", alignment))
    tensors = [tensor("a", (1,)), tensor("b", (1,), offset=alignment)]
    file = open_gguf(write(gguf([key], tensors, alignment + 4, alignment=alignment)))
    assert file.alignment == alignment
    first, second = file.tensors.values()
    assert first.offset % alignment == 0
    assert second.offset == first.offset + alignment


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (tensor(dims=()), "0 dimensions"),
        (tensor(dims=(1, 1, 1, 1, 1)), "5 dimensions"),
        (string("a") + struct.pack("<I", 0xFFFFFFFF) + bytes(60), "4294967295 dimensions"),
        (tensor(dims=(0,)), "of 0 values"),
        (tensor(dims=(8, 0)), "of 0 values"),
        (tensor(dims=(1 << 32, 1 << 32)), f"of {1 << 64} values"),
        (tensor(dims=(1 << 16,) * 4), f"of {1 << 64} values"),
        (tensor(dims=((1 << 64) - 1, 2)), "values"),
        (tensor(dims=(33,), type=Q4_0), "no multiple of the 32"),
        (tensor(dims=(8,), offset=4), "no multiple of the alignment"),
    ],
)
def test_an_impossible_tensor(write: Write, row: bytes, says: str) -> None:
    assert says in refusal(write(gguf([], [row], 64)), TensorError)


@pytest.mark.parametrize(
    "row",
    [
        tensor(dims=((1 << 42) + 1,)),
        tensor(dims=(1 << 31, 1 << 31)),
        tensor(dims=(1 << 62,)),
        tensor(dims=(17,)),
        tensor(offset=64),
        tensor(offset=1 << 62),
        tensor(offset=(1 << 64) - 32),
    ],
)
def test_a_tensor_outside_the_file(write: Write, row: bytes) -> None:
    assert "but the file has only" in refusal(write(gguf([], [row], 64)), TruncatedFileError)


def test_a_tensor_with_a_bad_name(write: Write) -> None:
    refusal(write(gguf([], [tensor("")], 32)), MetadataError)
    refusal(write(gguf([], [tensor(b"\xc0")], 32)), MetadataError)


def test_tensors_that_overlap(write: Write) -> None:
    same = [tensor("a"), tensor("b")]
    assert "overlap" in refusal(write(gguf([], same, 64)), TensorError)
    into = [tensor("a", (8,), offset=32), tensor("b", (9,), offset=0)]
    assert "overlap" in refusal(write(gguf([], into, 64)), TensorError)
    around = [tensor("a", (64,)), tensor("b", (8,), offset=64)]
    assert "overlap" in refusal(write(gguf([], around, 256)), TensorError)


def test_a_gap_between_tensors_is_allowed(write: Write) -> None:
    tensors = [tensor("b", offset=96), tensor("a")]
    assert list(open_gguf(write(gguf([], tensors, 128))).tensors) == ["b", "a"]


def test_a_tensor_that_is_there_twice(write: Write) -> None:
    assert "twice" in refusal(write(gguf([], [tensor("a"), tensor("a", offset=32)], 64)), TensorError)


@pytest.mark.parametrize(("type", "says"), [(4, "Q4_2"), (31, "Q4_0_4_4"), (43, "type 43"), (0xFFFFFFFF, "4294967295")])
def test_an_unknown_tensor_type(write: Write, type: int, says: str) -> None:
    assert says in refusal(write(gguf([], [tensor(type=type)], 64)), UnsupportedError)


def test_a_message_shows_no_control_characters(write: Write) -> None:
    content = gguf([], [tensor("\x1b[2J\u202e" + "x" * 500, offset=4)], 64)
    message = refusal(write(content), TensorError)
    assert message.isprintable()
    assert len(message) < 500


def test_every_error_here_is_a_model_file_error_or_unsupported() -> None:
    for kind in (NotGgufError, TruncatedFileError, UnsupportedVersionError, MetadataError, TensorError, SplitError):
        assert issubclass(kind, ModelFileError)
    assert issubclass(UnsupportedError, LlmkitError)
