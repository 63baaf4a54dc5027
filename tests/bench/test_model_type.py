"""The names that llama.cpp gives to models (src/models/*.cpp, llama_ftype_name)."""

from types import SimpleNamespace
from typing import Any

import pytest

from llmkit.bench.model_type import model_type


def named(
    arch: str, n_layer: int, file_type: int | None = 15, tensors: dict[str, int] | None = None, **more: Any
) -> str:
    config: Any = SimpleNamespace(
        **{"n_embd": 64, "n_head": 8, "n_head_kv": 2, "n_vocab": 1000, **more}, arch=arch, n_layer=n_layer
    )
    return model_type(config, file_type, tensors or {"F32": 1})


def test_the_three_real_models() -> None:
    assert named("llama", 30, 3) == "llama 256M Q4_1"
    assert named("gemma3", 18) == "gemma3 270M Q4_K - Medium"
    assert named("qwen2", 24, n_embd=896) == "qwen2 1B Q4_K - Medium"


@pytest.mark.parametrize(
    ("arch", "n_layer", "more", "size"),
    [
        ("llama", 32, {"n_vocab": 49152}, "3B"),
        ("llama", 32, {"n_vocab": 32000}, "7B"),
        ("llama", 32, {"n_vocab": 128256}, "8B"),
        ("llama", 80, {}, "70B"),
        ("llama", 80, {"n_head_kv": 8}, "65B"),
        ("llama", 2, {}, "?B"),
        ("qwen2", 24, {"n_embd": 1024}, "0.5B"),
        ("qwen2", 28, {"n_embd": 1536}, "1.5B"),
        ("qwen2", 40, {"n_head": 20}, "4B"),
        ("qwen2", 40, {}, "13B"),
        ("qwen3", 28, {"n_embd": 1024}, "0.6B"),
        ("qwen3", 36, {"n_embd": 2560}, "4B"),
        ("qwen3", 36, {}, "8B"),
    ],
)
def test_sizes(arch: str, n_layer: int, more: dict[str, Any], size: str) -> None:
    assert named(arch, n_layer, 7, **more) == f"{arch} {size} Q8_0"


def test_file_types() -> None:
    assert named("llama", 22, 0) == "llama 1B all F32"
    assert named("llama", 22, 30) == "llama 1B IQ4_XS - 4.25 bpw"
    assert named("llama", 22, 999) == "llama 1B unknown, may not work"


def test_a_file_type_that_is_not_given_is_guessed() -> None:
    assert named("llama", 22, None, {"F32": 5, "Q4_K": 9, "Q6_K": 2}) == "llama 1B (guessed) Q4_K - Medium"
    assert named("llama", 22, None, {"F32": 9, "F16": 2}) == "llama 1B (guessed) all F32"
    assert named("llama", 22, None, {"Q8_0": 9, "F32": 2}) == "llama 1B (guessed) Q8_0"
