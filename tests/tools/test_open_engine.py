"""Opening a model for a command."""

from pathlib import Path
from typing import Any, Self

import pytest

from llmkit import report
from llmkit.engine.generation.timings import Timings
from llmkit.errors import ModelNotFoundError, TokenizerError
from llmkit.kernels import kernel_cache
from llmkit.models import packed
from llmkit.params import ContextParams
from llmkit.tools._engine import _packing, open_engine
from tests.make_models import make_model


class FakeBar:
    """Counts what it is told."""

    def __init__(self, label: str, total: int) -> None:
        self.total, self.n, self.closed = total, 0, False

    def update(self, n: int) -> None:
        self.n += n

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.closed = True


def test_packing_shows_a_bar_only_if_there_is_something_to_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[FakeBar] = []

    def progress(label: str, total: int) -> FakeBar:
        bars.append(FakeBar(label, total))
        return bars[-1]

    monkeypatch.setattr(report, "progress", progress)
    with _packing():
        pass
    assert bars == []
    with _packing() as show:
        for n_done in (10, 25, 100):
            show(n_done, 100)
    (bar,) = bars
    assert (bar.n, bar.total, bar.closed) == (100, 100, True)


def test_an_open_engine_has_all_its_parts(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", tokenizer="bpe")
    timings = Timings()
    with open_engine(str(path), ContextParams(n_ctx=256), timings, needs_text=True) as engine:
        assert engine.tokenizer is not None
        assert engine.ctx.n_ctx == 256
        assert engine.ctx.model is engine.model
    assert timings.load_s > 0
    assert timings.kernels_s > 0


def test_a_model_without_a_tokenizer_opens_if_no_text_is_needed(tmp_path: Path, capsys: Any) -> None:
    path = make_model(tmp_path / "m.gguf", tokenizer="test")
    with open_engine(str(path), ContextParams(n_ctx=256), Timings(), needs_text=False) as engine:
        assert engine.tokenizer is None
    assert "ids are shown instead of text" in capsys.readouterr().err
    with (
        pytest.raises(TokenizerError),
        open_engine(str(path), ContextParams(n_ctx=256), Timings(), needs_text=True),
    ):
        pass


def test_a_model_that_is_not_there_is_found_out_before_anything_is_imported(tmp_path: Path) -> None:
    with (
        pytest.raises(ModelNotFoundError),
        open_engine(str(tmp_path / "no.gguf"), ContextParams(), Timings(), needs_text=True),
    ):
        pass


def test_what_cannot_be_kept_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise every start is slow and nobody knows why."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLMKIT_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(packed, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(kernel_cache, "CACHE_FOLDER", tmp_path / "file" / "kernels")
    path = make_model(tmp_path / "m.gguf", tokenizer="bpe")
    with open_engine(str(path), ContextParams(n_ctx=256), Timings(), needs_text=True):
        said = capsys.readouterr().err
    assert "compiling the kernels, at every start" in said
    assert "LLMKIT_CACHE" in said
    assert "packed at every start" in said
