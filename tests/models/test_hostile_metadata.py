"""Whatever a file's hyper-parameters say is checked against what its architecture needs, and the key is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.errors import MetadataError, TensorError, UnsupportedError
from llmkit.files.gguf_writer import TensorData, write_gguf
from llmkit.models.model import load_model
from llmkit.models.registry import FAMILIES
from tests.make_models import TinyModel, build, make_model

EVERY = ("llama", "gpt2", "gemma2", "falcon", "cohere2", "glm4", "bloom", "qwen3moe", "gpt-oss")
MOE = ("qwen3moe", "gpt-oss", "olmoe")
U32, F32 = np.uint32, np.float32

# Architectures, key without the architecture's name, and values none of which may load.
CASES: list[tuple[tuple[str, ...], str, list[Any]]] = [
    (EVERY, "block_count", [0, 513, 10**6, 2.5, "two", -1]),
    (EVERY, "embedding_length", [0, 1 << 21]),
    (EVERY, "attention.head_count", [0, 1 << 20, np.array([4, 2], U32), np.array([], U32), np.array([4.0], F32)]),
    (EVERY, "attention.head_count_kv", [0, 3, 8]),
    (EVERY, "attention.key_length", [0, 2000]),
    (EVERY, "attention.value_length", [8]),
    (EVERY, "context_length", [0]),
    (("llama", "gemma2"), "feed_forward_length", [0, 1 << 21, np.array([128, 64], U32)]),
    (("llama", "falcon", "qwen3moe", "gpt-oss"), "rope.dimension_count", [0, 8, 17, 18, 4096]),
    (("glm4", "stablelm", "phi2"), "rope.dimension_count", [0, 17, 18, 4096]),
    (("llama", "gpt-oss"), "rope.freq_base", [0.0, -1.0, 1]),
    (("llama", "gemma2"), "rope.scaling.type", ["spiral", 1]),
    (("llama", "gemma2"), "attention.layer_norm_rms_epsilon", [None, -1.0, 1]),
    (("gpt2", "falcon", "cohere2"), "attention.layer_norm_epsilon", [None, -1.0]),
    (("cohere2", "gpt-oss"), "attention.sliding_window", [None, 0]),
    (
        ("gemma2", "gemma3", "cohere2"),
        "attention.sliding_window_pattern",
        [np.array([1], U32), np.zeros(3, U32), "all"],
    ),
    (("glm4", "qwen2vl"), "rope.dimension_sections", [np.array([8, 8], np.int32), np.array([0.5] * 4, F32), 7]),
    (("glm4", "qwen2vl"), "rope.dimension_sections", [np.array([8, 8, -1, 0], np.int32), "8 8 8 8"]),
    (("qwen2vl",), "rope.dimension_sections", [None]),
    (MOE, "expert_count", [None, 0, 5000, -1]),
    (MOE, "expert_used_count", [None, 0, 9]),
    (MOE, "expert_group_count", [4]),
    (("gemma2", "qwen3", "gpt2", "olmo2"), "expert_count", [8]),
    (("granite", "granitemoe"), "logit_scale", [None, 0.0, -1.0]),
    (("gemma2",), "attn_logit_softcapping", [-1.0, "fifty"]),
    (("glm4",), "nextn_predict_layers", [2, 7]),
    (("gptneox",), "use_parallel_residual", [None, "yes", 1]),
    (("mistral3",), "attention.temperature_scale", [-1.0, 1e30, "hot", 1]),
    (("mistral3",), "rope.scaling.yarn_log_multiplier", [-1.0, "half"]),
    (("mpt", "jais"), "attention.max_alibi_bias", [-1.0, "steep"]),
    (("mpt",), "attention.clamp_kqv", [-1.0, "tight"]),
    (("mellum",), "attention.sliding_window_pattern", [np.array([1], U32)]),
]
FLAT = [(arch, key, value) for archs, key, values in CASES for arch in archs for value in values]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("arch", "key", "value"), FLAT, ids=lambda value: str(value).replace("\n", " "))
def test_a_value_that_cannot_be(tmp_path: Path, arch: str, key: str, value: Any) -> None:
    path = make_model(tmp_path / "m.gguf", arch=arch, metadata={f"{arch}.{key}": value})
    # Widths that no metadata contradicts are contradicted by a tensor.
    with pytest.raises((MetadataError, UnsupportedError, TensorError)) as caught:
        load_model(path)
    assert f"{arch}.{key}" in caught.value.message or isinstance(caught.value, TensorError)
    assert str(path) in caught.value.message


@pytest.mark.parametrize("arch", sorted(FAMILIES))
def test_sizes_that_the_tensors_contradict(tmp_path: Path, arch: str) -> None:
    key = "expert_feed_forward_length" if FAMILIES[arch].experts == "must" else "feed_forward_length"
    path = make_model(tmp_path / "m.gguf", arch=arch, metadata={f"{arch}.{key}": 96})
    with pytest.raises(TensorError, match="shape"):
        load_model(path)


@pytest.mark.parametrize("name", ["blk.1.attn_q_norm.weight", "blk.0.ffn.act.scales"])
def test_a_tensor_that_would_be_left_out_is_refused(tmp_path: Path, name: str) -> None:
    metadata, tensors = build(TinyModel(arch="mpt"))
    values = np.ones(64, np.float32)
    write_gguf(tmp_path / "m.gguf", metadata, [*tensors, TensorData(name, (64,), 0, values)])
    with pytest.raises(UnsupportedError, match=name):
        load_model(tmp_path / "m.gguf")


@pytest.mark.parametrize("arch", ["deepseek2", "mamba2", "bert", "no such", ""])
def test_other_architectures_are_refused_with_the_list_of_those_that_run(tmp_path: Path, arch: str) -> None:
    path = make_model(tmp_path / "m.gguf", metadata={"general.architecture": arch})
    with pytest.raises(UnsupportedError) as caught:
        load_model(path)
    assert repr(arch) in caught.value.message
    assert all(name in caught.value.hint for name in FAMILIES)


def test_a_context_larger_than_learned_positions_is_refused(tmp_path: Path) -> None:
    from llmkit.engine.context import Context
    from llmkit.errors import UsageError
    from llmkit.params import ContextParams

    model = load_model(make_model(tmp_path / "m.gguf", arch="gpt2", n_ctx_train=64))
    with pytest.raises(UsageError, match="64 positions"):
        Context(model, ContextParams(n_ctx=65, n_threads=1))
    Context(model, ContextParams(n_ctx=64, n_threads=1)).close()
