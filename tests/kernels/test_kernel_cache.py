"""Compiled code in the cache: whatever happened to its files, kernels run, and are kept where that can be done."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.paths import REPO_ROOT

PROGRAM = """
import sys
import numpy as np
from llmkit.kernels.jit import entry, helper, kernel, i64
from llmkit.kernels.kernel_cache import can_keep, compiled_before
from llmkit.simd.ops import call_kernel, load_i64, store_i64
before = compiled_before()

@helper
def twice(x):
    return 2 * x

@kernel
def double(args, first, last):
    store_i64(args, twice(load_i64(args)))

@entry(i64(i64, i64))
def four_times(address, kernel):
    call_kernel(kernel, address, 0, 0)
    return twice(load_i64(address))

@entry(i64(i64))
def allocates(n):
    return np.zeros(n, np.int64).sum()

value = np.array([10], np.int64)
result = four_times(value.ctypes.data, double.address) + allocates(3)
print(result, before, can_keep(), four_times.stats.cache_hits != {}, double._made.cache_hits)
"""
RIGHT = "40"


def run(folder: Path, cache: Path, full: bool = False) -> list[str]:
    """What PROGRAM prints: the result, whether anything was compiled before, whether it is kept, hits of both."""
    program = folder / "program.py"
    if not program.exists():
        program.write_text(PROGRAM)
    command = [sys.executable, str(program)]
    if full:  # no file can grow, as on a full disk
        command = [sys.executable, "-c", f"import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
                   f"runpy.run_path({str(program)!r})"]  # fmt: skip
    environment = {**os.environ, "LLMKIT_CACHE": str(cache), "PYTHONPATH": str(REPO_ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, and a cache that holds its code."""
    folder = tmp_path_factory.mktemp("kernels")
    assert run(folder, folder / "cache") == [RIGHT, "False", "True", "False", "0"]
    assert run(folder, folder / "cache") == [RIGHT, "True", "True", "True", "1"]
    return folder


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path: Path) -> None:
    path.write_bytes(os.urandom(100))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGE = [(suffix, damage) for suffix in (".nbi", ".nbc") for damage in (empty, cut, garble)] + [(".nbc", flip)]


@pytest.mark.parametrize(("suffix", "damage"), DAMAGE)
def test_damaged_files_are_made_anew(filled: Path, suffix: str, damage: Callable[[Path], None]) -> None:
    files = list((filled / "cache").rglob(f"*{suffix}"))
    assert files
    for file in files:
        damage(file)
    assert run(filled, filled / "cache") == [RIGHT, "True", "True", "False", "0"]
    assert run(filled, filled / "cache") == [RIGHT, "True", "True", "True", "1"]


def test_a_full_disk_keeps_nothing_and_runs(filled: Path) -> None:
    assert run(filled, filled / "full", full=True)[0] == RIGHT


def test_a_file_in_the_place_of_the_cache(filled: Path) -> None:
    (filled / "file").write_text("mine")
    assert run(filled, filled / "file") == [RIGHT, "False", "False", "False", "0"]
    assert (filled / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_only_be_read_is_used(filled: Path) -> None:
    folders = [filled / "cache", *(path for path in (filled / "cache").rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        assert run(filled, filled / "cache") == [RIGHT, "True", "False", "True", "1"]
    finally:
        for folder in folders:
            folder.chmod(0o700)
