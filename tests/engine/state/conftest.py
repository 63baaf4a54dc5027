"""Models with and without a window, and a place for a file."""

from pathlib import Path

import pytest

from tests.engine.state.states import SIZES
from tests.make_models import make_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("state")
    window = {"window": 48, "window_pattern": (1, 0)}
    return {
        "llama": make_model(folder / "llama.gguf", arch="llama", **SIZES),
        "gemma3": make_model(folder / "gemma3.gguf", arch="gemma3", **window, **SIZES),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.state"
