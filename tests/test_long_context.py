"""A window that slides: far beyond gemma3's window, positions of four digits, against the twin and against itself.

The shared golden models cannot show a window that is off by one (their attention is nearly flat: 2e-7); this one can.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import engine_runs as runs
from tests import reference as ref
from tests.make_models import make_model

runs.need_engine()

N_VOCAB, N_TOKENS, WINDOW = 131, 1153, 64


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers: window, full, window; five query heads on one key head; two rope bases."""
    metadata = {"gemma3.rope.freq_base_swa": 5000.0, "gemma3.rope.scaling.factor": 2.0}
    sizes: dict[str, Any] = {
        "n_layer": 3,
        "n_embd": 96,
        "n_ff": 160,
        "n_head": 5,
        "n_head_kv": 1,
        "head_dim": 32,
        "n_vocab": N_VOCAB,
    }
    return make_model(
        tmp_path_factory.mktemp("long") / "window.gguf",
        arch="gemma3",
        window=WINDOW,
        window_pattern=(1, 0, 1),
        rope_freq_base=1e6,
        n_ctx_train=4096,
        metadata=metadata,
        **sizes,
    )


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return runs.random_ids(N_TOKENS, N_VOCAB, seed=3)


@pytest.fixture(scope="module")
def twin(windowed: Path, ids: list[int]) -> NDArray[np.floating]:
    return ref.forward(windowed, ids)


def test_the_twin_sees_a_window_off_by_one(windowed: Path, ids: list[int], twin: NDArray[np.floating]) -> None:
    """The bound of the next test means something: one key more in the window is far outside it."""
    model = ref.Twin(windowed)
    wider = tuple(w + 1 if w else 0 for w in model.hparams.window)
    object.__setattr__(model.hparams, "window", wider)
    error = ref.nmse(model.forward(ids)[WINDOW:], twin[WINDOW:])
    assert error > 1e-5


def test_engine_against_the_twin(windowed: Path, ids: list[int], twin: NDArray[np.floating]) -> None:
    with runs.context(windowed, kv="f32", seed=1) as ctx:
        got = runs.prefill(ctx, ids, 512)
    for part in (slice(0, WINDOW), slice(WINDOW, 512), slice(512, N_TOKENS)):
        assert ref.nmse(got[part], twin[part]) <= 1e-9


@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_token_by_token_gives_equal_bits(windowed: Path, ids: list[int], kv: str) -> None:
    with runs.context(windowed, kv=kv, n_threads=1, seed=2) as ctx:
        want = runs.prefill(ctx, ids, 512)
    with runs.context(windowed, kv=kv, seed=3) as ctx:
        runs.assert_same_bits(runs.prefill(ctx, ids, 1), want, "token by token")
        runs.assert_same_bits(runs.prefill(ctx, ids, 100), want, "chunks of 100")
