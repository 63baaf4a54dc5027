"""`llmkit --version`: quickly found, and the same as what an engine finds."""

import os
import subprocess
import sys

import pytest

from llmkit.simd import target
from tests.paths import REPO_ROOT

CODE = """
import sys
from llmkit.shell.version import cpu_path
print(*cpu_path()[0:1], "numba" in sys.modules)
"""


def path_of(**env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=REPO_ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_the_path_is_the_engines() -> None:
    assert path_of() == f"{target.path()} False"


@pytest.mark.skipif(target.path() not in ("avx512vnni", "avx2"), reason="for x86")
@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, "generic"),
        ({"NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c,-avx512f"}, "avx2"),
        ({"NUMBA_CPU_NAME": "x86-64-v2"}, "generic"),
    ],
    ids=("no-features", "avx2", "name"),
)
def test_what_numba_is_told_counts(env: dict[str, str], path: str) -> None:
    assert path_of(**env) == f"{path} False"
    code = "from llmkit.simd import target; print(target.path())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPO_ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == path


def test_the_versions() -> None:
    import llvmlite
    import numba
    import numpy

    done = subprocess.run([sys.executable, "-m", "llmkit", "-V"], cwd=REPO_ROOT, capture_output=True, text=True)
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert rows["numba"] == numba.__version__
    assert rows["llvmlite"] == llvmlite.__version__
    assert rows["numpy"] == numpy.__version__
    assert rows["cpu"].split(",")[0] == target.path()
    assert set(rows["cpu"].partition("with ")[2].split()) <= target.features()
