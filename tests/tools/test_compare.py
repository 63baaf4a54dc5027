"""`llmkit compare` as a whole program: the table, the object, the plot, and what is refused."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llmkit.errors import OutputError, UsageError
from llmkit.evaluate.compare import ModelScore
from llmkit.evaluate.errors import MissingLibraryError
from llmkit.tools import _compare_text as show
from llmkit.tools import compare as command
from tests.engine_runs import need_engine
from tests.evaluate import samples
from tests.make_models import make_model
from tests.tools.in_process import Finished, run_llmkit

need_engine()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """One in float32 and in two quantised forms."""
    folder = tmp_path_factory.mktemp("compare")
    types = {"full": "F32", "eight": "Q8_0", "four": "Q4_0"}
    for name, type in types.items():
        make_model(folder / f"{name}.gguf", tokenizer="bpe", type=type)
    return [str(folder / f"{name}.gguf") for name in types]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(samples.TEXT)
    return str(path)


def llmkit(*args: str, stdin: str | None = None) -> Finished:
    return run_llmkit("compare", *args, stdin=None if stdin is None else stdin.encode())


def compared(*args: str) -> dict[str, Any]:
    done = llmkit(*args, "--json", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def refused(*args: str, stdin: str | None = None) -> str:
    done = llmkit(*args, stdin=stdin)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def test_the_object(models: list[str], text: str) -> None:
    found = compared(*models, "-f", text, "-c", "128", "--tensors", "3")
    assert (found["n_ctx"], found["stop_reason"], found["n_chunks_done"]) == (128, "done", found["n_chunks"])
    full, eight, four = found["models"]
    assert [m["name"] for m in found["models"]] == ["full.gguf", "eight.gguf", "four.gguf"]
    assert [m["bytes"] for m in found["models"]] == [Path(path).stat().st_size for path in models]
    assert full["bits_per_weight"] == 32
    assert 8 < eight["bits_per_weight"] < 10
    assert 4 < four["bits_per_weight"] < 6
    assert full["kld"] == {"mean": 0, "error": 0}
    assert 0 < eight["kld"]["mean"] < four["kld"]["mean"]
    assert full["same_top"]["mean"] == 1
    assert all(m["prefill_tokens_per_second"] > 0 and m["decode_tokens_per_second"] > 0 for m in found["models"])
    assert full["worst_tensors"] == []
    for model in (eight, four):
        errors = [t["error"] for t in model["worst_tensors"]]
        assert len(errors) == 3
        assert errors == sorted(errors, reverse=True)
    assert eight["worst_tensors"][0]["error"] < four["worst_tensors"][0]["error"]
    assert (four["worst_tensors"][0]["base_type"], four["worst_tensors"][0]["type"]) == ("F32", "Q4_0")


def test_a_model_with_itself_has_exactly_none(models: list[str], text: str) -> None:
    found = compared(models[2], models[2], "-f", text, "-c", "128")
    same = found["models"][1]
    assert [m["name"] for m in found["models"]] == [models[2]] * 2  # one name for both would not do
    assert (same["kld"]["mean"], same["kld_percentiles"]["100"], same["same_top"]["mean"]) == (0, 0, 1)
    assert same["ppl_difference"]["mean"] == 0
    out = llmkit(models[2], models[2], "-f", text, "-c", "128", "-q").stdout
    assert "0.000000 ± 0.000000" in out
    assert "100.00 ± 0.00 %" in out
    assert "tensor" not in out


def test_the_table(models: list[str], text: str) -> None:
    done = llmkit(*models, "-f", text, "-c", "128", "--tensors", "1")
    lines = done.stdout.splitlines()
    for header in show.HEADERS:
        assert header in lines[0]
    assert [line.split()[0] for line in lines[2:5]] == ["full.gguf", "eight.gguf", "four.gguf"]
    assert [line.split()[0] for line in lines[8:]] == ["eight.gguf", "four.gguf"]
    assert "minutes to go" in done.stderr
    assert "tensor" not in llmkit(*models, "-f", text, "-c", "128", "--tensors", "0").stdout


def test_perplexities_are_those_of_the_other_command(models: list[str], text: str) -> None:
    found = compared(*models[:2], "-f", text, "-c", "128", "--chunks", "2", "-ctk", "f32", "-ctv", "f32")
    for path, model in zip(models, found["models"], strict=False):
        args = ["perplexity", "-m", path, "-f", text, "-c", "128", "--chunks", "2", "-ctk", "f32", "-ctv", "f32"]
        alone = json.loads(run_llmkit(*args, "--json", "-q").stdout)
        assert model["ppl"]["mean"] == pytest.approx(alone["ppl"], rel=1e-12)


def test_how_it_is_computed_does_not_matter(models: list[str], text: str) -> None:
    plain = compared(*models[:2], "-f", text, "-c", "64")["models"][1]["kld"]
    for args in (("-b", "64"), ("-ub", "9"), ("-t", "1")):
        assert compared(*models[:2], "-f", text, "-c", "64", *args)["models"][1]["kld"] == plain
    assert compared(*models[:2], "-f", text, "-c", "64", "-ctv", "f32")["models"][1]["kld"] != plain


def test_the_text_may_be_piped_in(models: list[str]) -> None:
    done = llmkit(*models[:2], "-c", "128", "-q", stdin=samples.TEXT)
    assert done.returncode == 0
    assert "four" not in done.stdout


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"Short."])
def test_bad_texts(models: list[str], raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(raw)
    assert "hint:" in refused(*models, "-f", str(tmp_path / "f"))


@pytest.mark.parametrize(
    "args", [("-c", "2"), ("--chunks", "0"), ("--tensors", "-1"), ("-q", "-v"), ("-ctk", "q9"), ("-f", "absent")]
)
def test_wrong_options(models: list[str], text: str, args: tuple[str, ...]) -> None:
    assert refused(*models, "-f", text, *args).startswith("error: ")


def test_one_model_is_too_few(models: list[str], text: str) -> None:
    assert "at least two" in refused(models[0], "-f", text)
    assert "error:" in refused("-f", text)


def test_models_of_different_vocabularies(models: list[str], text: str, tmp_path: Path) -> None:
    other = str(make_model(tmp_path / "spm.gguf", tokenizer="spm"))
    assert "only models with one vocabulary" in refused(models[0], other, "-f", text, "-c", "64")


def test_ctrl_c_shows_what_is_known(
    models: list[str], text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the first batch of chunks."""
    asked = []

    def answer(self: object) -> bool:
        asked.append(1)
        return len(asked) > 12

    monkeypatch.setattr(command.Interruption, "__call__", answer)
    request = command.CompareRequest(models[:2], text, 64, as_json=True)
    from dataclasses import replace

    from llmkit.params import ContextParams

    assert command.compare(replace(request, context=ContextParams(n_batch=64))) == 130
    found = json.loads(capsys.readouterr().out)
    assert found["stop_reason"] == "interrupted"
    assert 0 < found["n_chunks_done"] < found["n_chunks"]
    assert found["models"][1]["kld"]["mean"] > 0


# -- the plot ---------------------------------------------------------------------------------------------------------


def test_two_models_make_no_plot(models: list[str], text: str) -> None:
    with pytest.raises(UsageError, match="at least three"):
        command.compare(command.CompareRequest(models[:2], text, 64, plot="x.png"))


def test_a_plot_without_matplotlib(models: list[str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is computed."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingLibraryError, match="matplotlib") as found:
        command.compare(command.CompareRequest(models, text, 64, plot="x.png"))
    assert "pip install" in found.value.hint


class _Recorder:
    """Stands in for matplotlib's objects and writes down what is asked of them."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.append((name, args))
            if name == "savefig" and str(args[0]).endswith(".nonsense"):
                raise ValueError("Format 'nonsense' is not supported")
            return self

        return call


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...]]]:
    calls: list[tuple[str, tuple[Any, ...]]] = []
    library, figure = ModuleType("matplotlib"), ModuleType("matplotlib.figure")
    figure.Figure = lambda **kwargs: _Recorder(calls)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", library)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", figure)
    return calls


def rows(names: str) -> list[show.Row]:
    return [show.Row(name, Path(name), 2**20 * (i + 1), 4.5, ModelScore(), 1.0) for i, name in enumerate(names)]


def test_the_plot_has_a_point_for_each_but_the_first(drawn: list[tuple[str, tuple[Any, ...]]]) -> None:
    show.plot(rows("abc"), Path("x.png"))
    assert [args for name, args in drawn if name == "errorbar"] == [(2.0, 0.0), (3.0, 0.0)]
    assert [args[0] for name, args in drawn if name == "annotate"] == ["b", "c"]
    assert drawn[-1] == ("savefig", (Path("x.png"),))


def test_a_plot_that_cannot_be_written(drawn: list[tuple[str, tuple[Any, ...]]]) -> None:
    with pytest.raises(OutputError, match="nonsense"):
        show.plot(rows("abc"), Path("x.nonsense"))


def test_the_plot_is_an_image(models: list[str], text: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert llmkit(*models, "-f", text, "-c", "128", "--plot", str(tmp_path / "x.png")).returncode == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
