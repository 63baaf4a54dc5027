"""What a file may choose, the engine against the twin: scaled RoPE (linear, YaRN, factors of the file, short and long),
layers without RoPE, windows in models of one size, parallel residuals.
"""

from pathlib import Path
from typing import Any

import pytest

from tests import engine_runs as runs
from tests import reference as ref
from tests.make_models import make_model

IDS = runs.random_ids(70, 120, seed=2)
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}


@pytest.mark.parametrize(
    ("arch", "n_layer", "keys"),
    [
        ("llama", 2, YARN),
        ("llama", 2, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ("qwen2", 2, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
        ("gpt-oss", 4, YARN | {"rope.scaling.factor": 8.0, "rope.freq_base_swa": 500.0}),
        ("olmo2", 4, YARN | {"rope.scaling.attn_factor": 1.5}),
        ("gemma3", 7, {"rope.scaling.factor": 8.0, "rope.freq_base_swa": 500.0}),
        ("phi3", 2, {"rope.scaling.original_context_length": 256, "rope.scaling.attn_factor": 1.2}),
        ("phi3", 2, {"rope.scaling.original_context_length": 64}),
        ("smollm3", 5, {}),
        ("cohere2", 5, {}),
        ("granite", 2, {"rope.scaling.finetuned": False}),
        ("glm4", 2, {}),
        ("baichuan", 40, {}),
        ("mellum", 4, YARN),
        ("mistral3", 2, {}),
        ("mistral3", 2, {"attention.temperature_scale": 0.0, "rope.scaling.yarn_log_multiplier": 1.0}),
        ("exaone4", 4, {"attention.sliding_window": 20}),
        ("exaone4", 64, {"attention.sliding_window": 20}),
        ("gptneox", 2, {"use_parallel_residual": False}),
    ],
)
def test_engine_and_twin(tmp_path: Path, arch: str, n_layer: int, keys: dict[str, Any]) -> None:
    metadata = {f"{arch}.{key}": value for key, value in keys.items()}
    path = make_model(tmp_path / "m.gguf", arch=arch, n_layer=n_layer, window=20, metadata=metadata)
    want = ref.Twin(path, n_ctx=256).forward(IDS)
    with runs.context(path, n_ctx=256) as ctx:
        assert ref.nmse(runs.prefill(ctx, IDS, 33), want) <= 1e-9


def test_scaling_changes_something(tmp_path: Path) -> None:
    """What the test above relies on: another scaling gives other logits."""
    changed = {f"llama.{key}": value for key, value in YARN.items()}
    logits = [ref.forward(make_model(tmp_path / f"{i}.gguf", metadata=m), IDS) for i, m in enumerate(({}, changed))]
    assert ref.nmse(logits[1], logits[0]) > 1e-6
