"""What the tests of the scripts share."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def peer_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for one test, empty but for the compiled kernels."""
    kernels = Path(os.environ["LLMKIT_CACHE"]) / "kernels"
    cache = tmp_path / "cache"
    cache.mkdir()
    if kernels.exists():
        (cache / "kernels").symlink_to(kernels)
    monkeypatch.setenv("LLMKIT_CACHE", str(cache))
    return cache
