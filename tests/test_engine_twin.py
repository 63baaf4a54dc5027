"""The engine against the twin, per tensor type and architecture.

Float weights agree to rounding. In front of quantised weights an activation that falls on the edge between two 8-bit
steps goes one way in float32 and the other in float64, and a second layer multiplies that. One layer alone is sharp:
most positions meet no such edge and agree to rounding, so that any other rule of rounding shows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import engine_runs as runs
from tests import reference as ref
from tests.make_archs import FILES
from tests.make_blocks import TYPES
from tests.make_models import make_model
from tests.reference.quant import FLOATS

runs.need_engine()

ARCHS = tuple(FILES)
QUANTISED = [kind for kind in TYPES if kind not in FLOATS]
# Every architecture with one float type; every quantised type and every architecture at least once.
FLOAT_PAIRS = [(arch, FLOATS[i % len(FLOATS)]) for i, arch in enumerate(ARCHS)]
QUANTISED_PAIRS = [
    (ARCHS[i % len(ARCHS)], QUANTISED[i % len(QUANTISED)]) for i in range(max(len(ARCHS), len(QUANTISED)))
]
IDS = runs.random_ids(70, 131, seed=6)  # more than two blocks, more than gemma3's window
Record = Callable[[str, object], None]


def tiny(folder: Path, arch: str, kind: str, n_layer: int) -> Path:
    """256 wide for the K-quants; a vocabulary that fills no tile; gemma3's output tied, its first layer a window."""
    changes: dict[str, Any] = {"n_embd": 256, "n_ff": 512, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "n_vocab": 131}
    changes["n_ctx_train"] = 512  # as large as the context: gpt2 has no more positions, phi3 takes its short factors
    if FILES[arch].window:
        changes |= {"window": 20, "window_pattern": (1, 0)[:n_layer], "tied": arch == "gemma3"}
    return make_model(folder / "m.gguf", arch=arch, type=kind, n_layer=n_layer, **changes)


def engine(path: Path) -> np.ndarray:
    with runs.context(path, kv="f32", n_ctx=512, seed=1) as ctx:
        return runs.prefill(ctx, IDS, 64)


def by_position(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    return np.array([ref.nmse(a, b) for a, b in zip(got, want, strict=True)])


@pytest.mark.parametrize(("arch", "kind"), FLOAT_PAIRS)
def test_float_weights(arch: str, kind: str, tmp_path: Path, record_property: Record) -> None:
    path = tiny(tmp_path, arch, kind, n_layer=2)
    errors = by_position(engine(path), ref.forward(path, IDS))
    record_property("nmse", f"{errors.max():.3g}")
    assert errors.max() <= 1e-10


@pytest.mark.parametrize(("arch", "kind"), QUANTISED_PAIRS)
def test_one_layer_of_quantised_weights(arch: str, kind: str, tmp_path: Path, record_property: Record) -> None:
    path = tiny(tmp_path, arch, kind, n_layer=1)
    errors = by_position(engine(path), ref.forward(path, IDS, act_quant=True))
    record_property("nmse", f"median {np.median(errors):.3g} max {errors.max():.3g}")
    assert np.median(errors) <= 1e-11
    assert errors.max() <= 1e-3


@pytest.mark.parametrize(("arch", "kind"), QUANTISED_PAIRS)
def test_two_layers_stay_within_the_noise_of_8_bits(arch: str, kind: str, tmp_path: Path) -> None:
    """No farther from the exact product than the twin with 8-bit activations is, within a factor of two."""
    path = tiny(tmp_path, arch, kind, n_layer=2)
    exact = ref.forward(path, IDS)
    noise = ref.nmse(ref.forward(path, IDS, act_quant=True), exact)
    assert 0.5 * noise < ref.nmse(engine(path), exact) < 2 * noise
