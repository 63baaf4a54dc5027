"""Rebuilt merges are kept, checked when they are read, and never needed."""

import os
import stat
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from llmkit.tokenizer import load, load_tokenizer, merges_cache
from llmkit.tokenizer.merges_cache import merges_key, read_merges, write_merges
from llmkit.tokenizer.vocab import Vocab
from tests.tokenizer.vocabs import bpe_metadata, loaded, opened, spm_metadata

PIECES = ["a", "b", "▁", "ab", "▁ab", "aba"]
TEXT = "abab aba"
IDS = [1, 263, 262, 263, 259]
MERGES = np.array([[1, 2, 3], [3, 4, 0]], dtype=np.int32)
KEY = merges_key(b"test")


@pytest.fixture
def rebuilds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each time that merges are rebuilt."""
    calls: list[int] = []
    rebuild = load._rebuild

    def counted(vocab: Vocab) -> object:
        calls.append(1)
        return rebuild(vocab)

    monkeypatch.setattr(load, "_rebuild", counted)
    return calls


def load_in(cache: Path, pieces: list[str] = PIECES) -> None:
    assert loaded(spm_metadata(pieces), cache).encode(TEXT) == IDS


def the_file(cache: Path) -> Path:
    (path,) = (cache / "tokenizers").iterdir()
    return path


def test_the_second_time_nothing_is_rebuilt(tmp_path: Path, rebuilds: list[int]) -> None:
    load_in(tmp_path)
    load_in(tmp_path)
    assert len(rebuilds) == 1
    assert the_file(tmp_path).name.endswith(".merges")


def test_the_default_is_the_user_s_cache(temp_cache: Path) -> None:
    load_tokenizer(opened(spm_metadata(PIECES)))
    assert the_file(temp_cache).is_file()


def test_bpe_keeps_its_merges_as_ids(tmp_path: Path) -> None:
    metadata = bpe_metadata([("a", "b")])
    loaded(metadata, tmp_path)
    kept = read_merges(tmp_path / "tokenizers", the_file(tmp_path).stem, 257)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    assert kept is not None
    assert [[tokens[id] for id in merge] for merge in kept.tolist()] == [["a", "b", "ab"]]


@pytest.mark.parametrize("change", ["tokens", "scores", "token_type"])
def test_another_vocabulary_has_another_file(change: str, tmp_path: Path) -> None:
    metadata = spm_metadata(PIECES)
    loaded(metadata, tmp_path)
    key = f"tokenizer.ggml.{change}"
    if change == "tokens":
        metadata[key] = [*metadata[key][:-1], "bab"]  # type: ignore[index]
    else:
        values = np.array(metadata[key])
        values[-1] = 5
        metadata[key] = values
    loaded(metadata, tmp_path)
    assert len(list((tmp_path / "tokenizers").iterdir())) == 2


def damaged(raw: bytes) -> dict[str, bytes]:
    """Files that are not what was written, each wrong in its own way."""
    foreign_ids = np.array([[10**6, 1, 1]], dtype=np.int32)
    return {
        "empty": b"",
        "one byte": raw[:1],
        "cut off": raw[:-1],
        "cut in half": raw[: len(raw) // 2],
        "longer": raw + b"\0",
        "a bit flipped": raw[:50] + bytes([raw[50] ^ 1]) + raw[51:],
        "zeros": bytes(len(raw)),
        "text": b"<html>",
        "another key": _file_of(merges_key(b"another"), MERGES),
        "ids that are no tokens": _file_of(KEY, foreign_ids),
        "negative ids": _file_of(KEY, -foreign_ids),
        "half a pair": _signed(raw[:-20]),
        "another version": _signed(raw[:-16].replace(b"merges 2", b"merges 1")),
    }


def _file_of(key: str, merges: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]") -> bytes:
    return _signed(merges_cache._MAGIC + bytes.fromhex(key) + merges.tobytes())


def _signed(raw: bytes) -> bytes:
    return raw + merges_cache._digest(raw)


GOOD = _file_of(KEY, MERGES)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_merges(tmp_path / "new" / "folder", KEY, MERGES)
    kept = read_merges(tmp_path / "new" / "folder", KEY, 5)
    assert kept is not None
    assert kept.tolist() == MERGES.tolist()
    assert (tmp_path / "new" / "folder" / f"{KEY}.merges").read_bytes() == GOOD


def test_no_merges_are_merges_too(tmp_path: Path) -> None:
    write_merges(tmp_path, KEY, MERGES[:0])
    kept = read_merges(tmp_path, KEY, 5)
    assert kept is not None
    assert kept.shape == (0, 3)


@pytest.mark.parametrize("name", list(damaged(GOOD)))
def test_a_damaged_file_is_not_read(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{KEY}.merges").write_bytes(damaged(GOOD)[name])
    assert read_merges(tmp_path, KEY, 5) is None


@pytest.mark.parametrize("name", list(damaged(GOOD)))
def test_a_damaged_file_is_rebuilt_and_replaced(name: str, tmp_path: Path, rebuilds: list[int]) -> None:
    load_in(tmp_path)
    path = the_file(tmp_path)
    good = path.read_bytes()
    path.write_bytes(damaged(good)[name])
    load_in(tmp_path)
    assert len(rebuilds) == 2
    assert path.read_bytes() == good


def test_merges_that_do_not_fit_are_rebuilt(tmp_path: Path, rebuilds: list[int]) -> None:
    """A file that is sound in itself, but joins a and b to a."""
    load_in(tmp_path)
    path = the_file(tmp_path)
    good = path.read_bytes()
    path.write_bytes(_file_of(path.stem, np.array([[259, 260, 259]], dtype=np.int32)))
    load_in(tmp_path)
    assert len(rebuilds) == 2
    assert path.read_bytes() == good


@pytest.mark.parametrize("kind", ["a folder", "a FIFO", "a dangling link"])
def test_what_is_no_file_is_passed_over(kind: str, tmp_path: Path, rebuilds: list[int]) -> None:
    load_in(tmp_path)
    path = the_file(tmp_path)
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "nowhere")
    load_in(tmp_path)
    assert len(rebuilds) == 2
    if kind != "a folder":
        assert stat.S_ISREG(path.lstat().st_mode)
    assert [entry.name for entry in (tmp_path / "tokenizers").iterdir()] == [path.name], "nothing half written is left"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, rebuilds: list[int]) -> None:
    """A file stands where the folder should be. (Root may write to a read-only folder: that would prove nothing.)"""
    (tmp_path / "tokenizers").write_bytes(b"")
    load_in(tmp_path)
    load_in(tmp_path)
    assert len(rebuilds) == 2
    assert (tmp_path / "tokenizers").read_bytes() == b""


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(source: str, target: Path) -> None:
        raise error

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext():
        write_merges(tmp_path, KEY, MERGES)
    assert not list(tmp_path.iterdir())
