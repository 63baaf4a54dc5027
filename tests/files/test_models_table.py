"""What `-m` means, and that the table can be trusted."""

import string
from pathlib import Path

import pytest

from llmkit.errors import ModelNotFoundError
from llmkit.files.models_table import DEFAULT_MODEL, MODELS, NamedModel, resolve_model
from tests.real_models import REAL_MODELS


def pretend_pulled(model: NamedModel, n_bytes: int | None = None) -> None:
    """A file of the right length where the model belongs."""
    model.path.parent.mkdir(parents=True)
    with model.path.open("wb") as file:
        file.truncate(model.n_bytes if n_bytes is None else n_bytes)


def test_a_path(tmp_path: Path, temp_cache: Path) -> None:
    file = tmp_path / "a model.gguf"
    file.write_bytes(b"")
    assert resolve_model(str(file)) == file
    assert resolve_model(str(tmp_path)) == tmp_path  # the reader says better what is wrong with a folder


def test_a_pulled_name(temp_cache: Path) -> None:
    model = MODELS["gemma-3-270m"]
    pretend_pulled(model)
    path = resolve_model("gemma-3-270m")
    assert path == temp_cache / "models" / "gemma-3-270m" / "gemma-3-270m-q4_k_m.gguf"
    assert path.exists()


def test_a_name_that_was_not_pulled_names_the_command(temp_cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"gemma-3-270m .253 MB") as info:
        resolve_model("gemma-3-270m")
    assert info.value.hint == "run `llmkit pull gemma-3-270m`"
    assert not temp_cache.exists()  # asking changes nothing


def test_an_incomplete_file_is_not_pulled(temp_cache: Path) -> None:
    pretend_pulled(MODELS["gemma-3-270m"], n_bytes=1000)
    with pytest.raises(ModelNotFoundError, match="has not been fetched"):
        resolve_model("gemma-3-270m")


def test_without_a_choice_it_is_the_default(temp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMKIT_MODEL", raising=False)
    with pytest.raises(ModelNotFoundError) as info:
        resolve_model(None)
    assert info.value.hint == "run `llmkit pull smollm2-135m`"
    pretend_pulled(MODELS[DEFAULT_MODEL])
    assert resolve_model(None) == MODELS[DEFAULT_MODEL].path


def test_the_environment_chooses(temp_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "chosen.gguf"
    file.write_bytes(b"")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LLMKIT_MODEL", "~/chosen.gguf")
    assert resolve_model(None) == file
    monkeypatch.setenv("LLMKIT_MODEL", "gemma-3-270m")
    with pytest.raises(ModelNotFoundError, match="gemma-3-270m"):
        resolve_model(None)
    assert resolve_model(str(file)) == file  # -m comes first


@pytest.mark.parametrize("path", ["absent.gguf", "./absent", "folder/absent"])
def test_a_path_to_nothing(temp_cache: Path, path: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"there is no file {path}"):
        resolve_model(path)


def test_a_misspelt_name(temp_cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no model named 'gemma-270m'") as info:
        resolve_model("gemma-270m")
    assert "did you mean gemma-3-270m?" in info.value.hint


def test_a_model_of_the_tests_is_not_offered() -> None:
    assert set(REAL_MODELS) - set(MODELS) == {"qwen2.5-coder-0.5b"}
    with pytest.raises(ModelNotFoundError):
        resolve_model("qwen2.5-coder-0.5b")


@pytest.mark.parametrize("model", REAL_MODELS.values(), ids=list(REAL_MODELS))
def test_the_table_is_pinned(model: NamedModel) -> None:
    """Every wheel has a version and a full hash, and no two of them are the same."""
    hashes = [model.sha256, *(wheel.sha256 for wheel in model.wheels)]
    assert len(set(hashes)) == len(hashes)
    for digest in hashes:
        assert len(digest) == 64
        assert set(digest) <= set(string.hexdigits.lower())
    assert all(wheel.version[0].isdigit() for wheel in model.wheels)
    assert model.wheels[0].version in model.source
    assert model.licence


@pytest.mark.parametrize("name", list(REAL_MODELS))
def test_a_fetched_model_is_the_one_of_the_table(name: str, real_model) -> None:  # type: ignore[no-untyped-def]
    import hashlib

    with real_model(name).open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == REAL_MODELS[name].sha256
