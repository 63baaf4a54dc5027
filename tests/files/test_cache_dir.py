"""Where the cache is, and its locks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmkit.errors import CacheError
from llmkit.files.cache_dir import cache_root, locked, sub_dir
from tests.paths import REPO_ROOT


def test_the_variable_wins(temp_cache: Path) -> None:
    assert cache_root() == temp_cache
    assert not temp_cache.exists()
    assert sub_dir("models") == temp_cache / "models"
    assert (temp_cache / "models").is_dir()


def test_the_path_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMKIT_CACHE", "here")
    assert cache_root() == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LLMKIT_CACHE", "~/there")
    assert cache_root() == tmp_path / "there"


@pytest.mark.skipif(sys.platform != "linux", reason="the place differs elsewhere")
def test_without_it_the_platform_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLMKIT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "llmkit"


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLMKIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="cannot create the cache folder"):
        sub_dir("models")


def test_a_lock_keeps_another_process_out(temp_cache: Path) -> None:
    """The other one says that it waits, and goes on when the lock is free."""
    code = """
from llmkit.files.cache_dir import locked
with locked("x", lambda: print("waiting", flush=True)):
    print("in", flush=True)
"""
    with locked("x"):
        other = subprocess.Popen([sys.executable, "-c", code], cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "waiting\n"
    assert other.stdout.readline() == "in\n"
    assert other.wait(30) == 0
    other.stdout.close()


def test_locks_of_other_names_are_free(temp_cache: Path) -> None:
    def never() -> None:
        raise AssertionError("waited for a lock that nobody holds")

    with locked("x"), locked("y", never):
        pass
    with locked("x", never):
        pass


def test_no_descriptor_is_left_open(temp_cache: Path) -> None:
    n_before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for _ in range(5):
        with pytest.raises(KeyError), locked("x"):
            raise KeyError
    if n_before:
        assert len(os.listdir("/proc/self/fd")) == n_before
