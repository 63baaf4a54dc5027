"""What all tests share: a cache of their own, the real models, the shared data.

Tests see nothing of the user's cache but the fetched models (through `real_model`) and the compiled kernels, which are
named by the hash of their sources and may be shared.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from llmkit.files.cache_dir import cache_root
from tests.paths import DATA, SHARED
from tests.real_models import USER_CACHE, real_model_path


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a cache before any module of llmkit asks where it is; the workers of xdist get their parent's."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what runs in the background without Ctrl-C, and children inherit that; tests send it to theirs.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # and nohup without that
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if hasattr(config, "workerinput"):
        return
    user_cache = cache_root()
    own = Path(tempfile.mkdtemp(prefix="llmkit-tests-"))
    with suppress(OSError):
        (user_cache / "kernels").mkdir(parents=True, exist_ok=True)
        (own / "kernels").symlink_to(user_cache / "kernels")
    os.environ[USER_CACHE] = str(user_cache)
    os.environ["LLMKIT_CACHE"] = str(own)
    for name in [name for name in os.environ if name.startswith(("LLMKIT_", "LLAMA_ARG_"))]:
        if name not in (USER_CACHE, "LLMKIT_CACHE", "LLMKIT_SKIP_SLOW"):
            del os.environ[name]
    os.environ["LLMKIT_CONFIG"] = ""  # no file
    os.environ["NO_COLOR"] = "1"
    os.environ["LLMKIT_POISON"] = "1"  # blocks of keys and values are full of NaN before they are used and after


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the tests' cache, which may hold repacked models."""
    own = os.environ.get("LLMKIT_CACHE", "")
    if not hasattr(config, "workerinput") and USER_CACHE in os.environ:
        shutil.rmtree(own, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that takes longest first: where two processes share the tests, none then waits for it at the end."""
    items.sort(key=lambda item: item.path.name != "test_isa_paths.py")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The project's shared folder; skips where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"the shared test data is not there: {DATA}")
    return SHARED


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """`real_model("smollm2-135m")` is the file of a real model; skips where it was not fetched."""

    def path_or_skip(name: str) -> Path:
        path = real_model_path(name)
        if path is None:
            pytest.skip(f"the model {name} is not in the cache; scripts/fetch_test_models fetches it")
        return path

    return path_or_skip


@pytest.fixture
def temp_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for one test, in this process and those it starts."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("LLMKIT_CACHE", str(cache))
    return cache
