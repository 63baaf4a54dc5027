"""llama.cpp's file of log-probabilities: read, written, and refused when something is wrong with it."""

import shutil
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from llmkit.errors import OutputError, UsageError
from llmkit.evaluate.errors import (
    BaseFileError,
    NotABaseFileError,
    OtherLengthError,
    OtherModelError,
    OtherTextError,
    TruncatedBaseFileError,
)
from llmkit.evaluate.kl_divergence import base_windows
from llmkit.evaluate.logits_file import LogitsReader, LogitsWriter, packed_columns
from llmkit.evaluate.perplexity import perplexity
from llmkit.evaluate.text import encode_text
from llmkit.evaluate.windows import chunks
from tests.evaluate.contexts import small_context
from tests.evaluate.samples import DATA, TEXT, base_file
from tests.paths import DATA as SHARED_DATA
from tests.paths import need_shared

TOKENS = np.arange(40, dtype=np.int32)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return written(tmp_path / "base", base_file(TOKENS, 10, 41))


def test_the_header_and_the_rows(whole: Path) -> None:
    with LogitsReader(whole) as base:
        assert (base.n_ctx, base.n_vocab, base.n_chunks) == (10, 41, 4)
        np.testing.assert_array_equal(base.tokens, TOKENS)
        out = np.zeros((16, packed_columns(41) + 16), np.uint16)
        base.read_rows(out[:3])
        base.read_rows(out[3:])
    raw = np.frombuffer(whole.read_bytes()[20 + 160 :], "<u2").reshape(16, 46)
    np.testing.assert_array_equal(out[:, :46], raw)


@pytest.mark.parametrize(("n_vocab", "columns"), [(41, 46), (512, 516), (1, 6)])
def test_a_row_has_an_even_number_of_columns(n_vocab: int, columns: int) -> None:
    assert packed_columns(n_vocab) == columns


@pytest.mark.parametrize("n", [8, 19, 20, 100, 1000])
def test_a_file_cut_short(whole: Path, n: int) -> None:
    whole.write_bytes(whole.read_bytes()[:n])
    with pytest.raises(TruncatedBaseFileError):
        LogitsReader(whole)


def test_a_file_too_long(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes() + b"\0")
    with pytest.raises(TruncatedBaseFileError):
        LogitsReader(whole)


@pytest.mark.parametrize("data", [b"", b"GGUF", b"_logitz_" + bytes(100), b"<html>" * 20])
def test_something_else(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(NotABaseFileError):
        LogitsReader(written(tmp_path / "f", data))


@pytest.mark.parametrize(
    "sizes", [(0, 41, 4), (2**32 - 1, 41, 4), (10, -1, 4), (10, 2**31 - 1, 4), (10, 41, -1), (10, 41, 0)]
)
def test_impossible_sizes(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(NotABaseFileError, match="impossible sizes"):
        LogitsReader(written(tmp_path / "f", b"_logits_" + struct.pack("<Iii", *sizes) + bytes(100)))


@pytest.mark.parametrize("token", [-1, 41])
def test_token_ids_that_cannot_be(whole: Path, token: int) -> None:
    data = bytearray(whole.read_bytes())
    data[20 + 8 : 20 + 12] = struct.pack("<i", token)
    whole.write_bytes(data)
    with pytest.raises(NotABaseFileError, match="token ids"):
        LogitsReader(whole)


@pytest.mark.parametrize("name", ["absent", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(BaseFileError, match="cannot be read"):
        LogitsReader(tmp_path / name)


def test_another_vocabulary(whole: Path) -> None:
    with LogitsReader(whole) as base, pytest.raises(OtherModelError, match=r"41.*42"):
        base_windows(base, 42, None)


def test_another_length(whole: Path) -> None:
    with LogitsReader(whole) as base:
        assert base_windows(base, 41, None, n_ctx=10).n == 4
        with pytest.raises(OtherLengthError, match=r"10, not 12"):
            base_windows(base, 41, None, n_ctx=12)


def test_another_text(whole: Path) -> None:
    with LogitsReader(whole) as base:
        assert base_windows(base, 41, None, text=np.arange(45, dtype=np.int32)).n == 4
        with pytest.raises(OtherTextError):
            base_windows(base, 41, None, text=np.arange(1, 46, dtype=np.int32))
        with pytest.raises(OtherTextError):
            base_windows(base, 41, None, text=np.arange(39, dtype=np.int32))


def test_fewer_chunks_of_it(whole: Path) -> None:
    with LogitsReader(whole) as base:
        assert base_windows(base, 41, None, n_chunks=2).n == 2
        with pytest.raises(UsageError):
            base_windows(base, 41, None, n_chunks=0)


# -- writing ----------------------------------------------------------------------------------------------------------


def rows(n: int) -> np.ndarray:
    return np.arange(n * 46, dtype=np.uint16).reshape(n, 46)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    with LogitsWriter(tmp_path / "f", chunks(TOKENS, 10, -1, 5), 41) as writer:
        writer.write_rows(rows(7))
        writer.write_rows(rows(9))
        writer.finish()
    with LogitsReader(tmp_path / "f") as base:
        assert base.tokens.tolist() == TOKENS.tolist()  # the text's own, without the begin token
        out = np.zeros((16, 46), np.uint16)
        base.read_rows(out)
    np.testing.assert_array_equal(out, np.concatenate([rows(7), rows(9)]))
    assert [file.name for file in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, None])
def test_what_is_not_finished_leaves_nothing(tmp_path: Path, error: type[BaseException] | None) -> None:
    (tmp_path / "f").write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with LogitsWriter(tmp_path / "f", chunks(TOKENS, 10, -1, None), 41) as writer:
            writer.write_rows(rows(3))
            if error:
                raise error
        raise KeyboardInterrupt
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"before"]


@pytest.mark.parametrize("name", ["absent/f", "."])
def test_a_place_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError):
        LogitsWriter(tmp_path / name, chunks(TOKENS, 10, -1, None), 41)


def test_too_little_room_is_told_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(OutputError, match="GB"):
        LogitsWriter(tmp_path / "f", chunks(TOKENS, 10, -1, None), 41)
    assert not list(tmp_path.iterdir())


@need_shared
def test_our_file_is_llama_cpps(tmp_path: Path) -> None:
    """The same bytes but for a few steps of 65,535: the same header, tokens and places of rows."""
    from llmkit.tokenizer import load_tokenizer

    with small_context(SHARED_DATA / "stories260K.gguf") as ctx:
        tokenizer = load_tokenizer(ctx.model.gguf)
        windows = chunks(encode_text(tokenizer, TEXT), 16, 2, tokenizer.bos_id)
        with LogitsWriter(tmp_path / "f", windows, 512) as save:
            for _ in perplexity(ctx, windows, 2, save=save):
                pass
            save.finish()
    got, want = (tmp_path / "f").read_bytes(), (DATA / "c16.logits").read_bytes()
    assert len(got) == len(want)
    assert got[: 20 + 128] == want[: 20 + 128]
    got_rows, want_rows = (np.frombuffer(data[148:], "<u2").reshape(14, 516) for data in (got, want))
    heads = [r[:, :4].copy().view(np.float32) for r in (got_rows, want_rows)]
    np.testing.assert_allclose(heads[0], heads[1], rtol=2e-3)
    log_p = [h[:, :1] * r[:, 4:] + h[:, 1:] for h, r in zip(heads, (got_rows, want_rows), strict=True)]
    assert np.abs(log_p[0] - log_p[1]).max() < 0.02
