"""Logits against llama.cpp's, on the tiny model of each architecture: the NumPy twin's and the engine's.

The bound is an NMSE of 1e-6 with float32 weights and a float32 cache; every figure goes into the test report
(`pytest -rA` or the junit properties), because one that grows tells more than one that fails.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import engine_runs as runs
from tests import reference as ref
from tests.paths import DATA, TINY, need_shared
from tests.reference.golden import read_golden

pytestmark = need_shared

LATER = ("deepseek2-moe", "mamba2-dense")
MODELS = sorted(path.stem for path in (DATA / "golden").glob("*.bin") if path.stem not in LATER)
BOUND = 1e-6
Record = Callable[[str, object], None]


def check(name: str, logits: np.ndarray, record: Record) -> None:
    _, want = read_golden(DATA / "golden" / f"{name}.bin")
    error = ref.nmse(logits, want)
    record("nmse", f"{error:.3g}")
    print(f"{name}: NMSE {error:.3g}")  # noqa: T201  (shown by -rA and when it fails)
    assert error <= BOUND


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", MODELS)
def test_twin(name: str, dtype: type, record_property: Record) -> None:
    ids, _ = read_golden(DATA / "golden" / f"{name}.bin")
    check(name, ref.forward(TINY / f"{name}.gguf", ids, dtype), record_property)


@pytest.mark.parametrize("chunk", [48, 5])
@pytest.mark.parametrize("name", MODELS)
def test_engine(name: str, chunk: int, record_property: Record) -> None:
    runs.need_engine()
    ids, _ = read_golden(DATA / "golden" / f"{name}.bin")
    with runs.context(TINY / f"{name}.gguf", kv="f32", n_ctx=256) as ctx:
        check(name, runs.prefill(ctx, ids, chunk), record_property)


@pytest.mark.parametrize("name", MODELS)
def test_engine_with_a_half_precision_cache(name: str, record_property: Record) -> None:
    """The default cache: farther from llama.cpp's float32 one, as near to the twin that rounds its keys and values."""
    runs.need_engine()
    path: Path = TINY / f"{name}.gguf"
    ids, _ = read_golden(DATA / "golden" / f"{name}.bin")
    want = ref.Twin(path, np.float64, kv="f16").forward(ids)
    with runs.context(path, kv="f16", n_ctx=256) as ctx:
        error = ref.nmse(runs.prefill(ctx, ids, 48), want)
    record_property("nmse", f"{error:.3g}")
    assert error <= BOUND
