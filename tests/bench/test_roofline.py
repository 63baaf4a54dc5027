"""What a case needs, counted once more by walking through it token by token."""

from pathlib import Path
from typing import Any

import pytest

from llmkit.bench.cases import Case
from llmkit.bench.machine import Ceilings
from llmkit.bench.roofline import Work, work_of
from llmkit.files.ggml_types import GGML_TYPES
from llmkit.models.model import Model, load_model
from tests.make_models import make_model
from tests.reference.kv import QUANTISED

BYTES_OF_32 = {"f32": 128, "f16": 64, **QUANTISED}

SIZES: dict[str, Any] = {"n_embd": 64, "n_ff": 96, "n_head": 4, "n_head_kv": 2, "head_dim": 16, "n_vocab": 160}


def open_tiny(folder: Path, **changes: Any) -> Model:
    return load_model(make_model(folder / "m.gguf", **{**SIZES, **changes}))


def walked(model: Model, case: Case) -> Work:
    """Token by token over the tensors of the file: a second way to count."""
    memory, int8, f32 = 0, 0, 0
    passes: list[tuple[int, int, bool]] = []  # first position, tokens, logits
    pos = case.n_depth
    for chunk in range(0, case.n_prompt, case.n_batch):
        left = min(case.n_batch, case.n_prompt - chunk)
        while left:
            n = min(case.n_ubatch, left)
            left -= n
            passes.append((pos, n, left == 0))
            pos += n
    n_timed_prompt = len(passes)
    for _ in range(case.n_gen):
        passes.append((pos, 1, True))
        pos += 1
    config = model.config
    for i, (first, n, logits) in enumerate(passes):
        for tensor in model.gguf.tensors.values():
            if len(tensor.shape) < 2:
                continue
            is_output = tensor.name == "output.weight" or (
                tensor.name == "token_embd.weight" and "output.weight" not in model.gguf.tensors
            )
            if tensor.name == "token_embd.weight" and not is_output:
                continue
            rows = int(logits) if is_output else n
            if rows:
                memory += tensor.n_bytes
            ops = 2 * tensor.n_elements * rows
            if GGML_TYPES[tensor.type].name in ("F32", "F16", "BF16"):
                f32 += ops
            else:
                int8 += ops
        for token in range(first, first + n):
            for layer in range(config.n_layer):
                seen = min(token + 1, config.windows[layer] or token + 1)
                f32 += 4 * config.n_head * config.head_dim * seen
                if i >= n_timed_prompt:
                    values = config.n_head_kv * config.head_dim * seen
                    memory += sum(values * BYTES_OF_32[name] // 32 for name in (case.type_k, case.type_v))
    return Work(memory, int8, f32)


@pytest.mark.parametrize(
    "changes", [{"type": "Q4_0"}, {"type": "F16", "tied": True}, {"type": "Q8_0", "arch": "gemma3"}]
)
@pytest.mark.parametrize(
    "sizes",
    [
        {"n_prompt": 40, "n_gen": 0, "n_depth": 0},
        {"n_prompt": 0, "n_gen": 5, "n_depth": 0},
        {"n_prompt": 40, "n_gen": 3, "n_depth": 37, "n_batch": 32, "n_ubatch": 12},
        {"n_prompt": 0, "n_gen": 3, "n_depth": 50, "type_k": "f32", "type_v": "f32"},
        {"n_prompt": 8, "n_gen": 3, "n_depth": 5, "type_k": "q8_0", "type_v": "iq4_nl"},
    ],
)
def test_work(tmp_path: Path, changes: dict[str, Any], sizes: dict[str, Any]) -> None:
    model = open_tiny(tmp_path, **changes)
    case = Case(model.gguf.path, **sizes)
    assert work_of(model, case) == walked(model, case)


def test_times_at_the_ceilings() -> None:
    ceilings = Ceilings(2, "avx2", bandwidth_gb_s=10.0, int8_gop_s=1000.0, f32_gflop_s=100.0)
    work = Work(memory_bytes=10**9, int8_ops=10**12, f32_ops=5 * 10**10)
    assert work.seconds_of_memory(ceilings) == pytest.approx(0.1)
    assert work.seconds_of_compute(ceilings) == pytest.approx(1.5)
