"""Every instruction-set path gives the bits of the native one: each is compiled here, in a process of its own.

The paths are chosen as a person would lower them, by Numba's environment variables.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import engine_runs as runs
from tests.make_archs import FILES
from tests.make_blocks import TYPES
from tests.make_models import make_model
from tests.paths import REPO_ROOT
from tests.test_greedy import MODELS

runs.need_engine()

ARCHS = tuple(FILES)
LOWERED = {
    "avx2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+avx,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.2"},
    "generic": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
}
pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="only x86-64 has paths that can be lowered"
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, real_model: Callable[[str], Path]) -> list[str]:
    """A tiny model of each tensor type and each architecture, and those real models that are here."""
    folder = tmp_path_factory.mktemp("isa")
    sizes: dict[str, Any] = {"n_embd": 256, "n_ff": 512, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "n_vocab": 131}
    pairs = [(ARCHS[i % len(ARCHS)], TYPES[i % len(TYPES)]) for i in range(max(len(ARCHS), len(TYPES)))]
    paths = [
        make_model(folder / f"{arch}-{kind}.gguf", arch=arch, type=kind, window=20, **sizes) for arch, kind in pairs
    ]
    for name in MODELS:
        try:
            paths.append(real_model(name))
        except pytest.skip.Exception:
            continue
    return [str(path) for path in paths]


def digests(models: list[str], lowered: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.isa_digest", *models]
    done = subprocess.run(command, cwd=REPO_ROOT, env={**os.environ, **lowered}, capture_output=True, timeout=500)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def native(models: list[str]) -> dict[str, Any]:
    return digests(models, {})


@pytest.mark.timeout(600)  # compiles every kernel when their sources have changed
@pytest.mark.parametrize("name", list(LOWERED))
def test_equal_bits(models: list[str], native: dict[str, Any], name: str) -> None:
    if native["path"] == name:
        pytest.skip(f"{name} is this machine's own path")
    lowered = digests(models, LOWERED[name])
    assert lowered["path"] == name
    different = [Path(p).stem for p, digest in native["digests"].items() if lowered["digests"][p] != digest]
    assert different == []
