"""How llama.cpp names a model: `llama 256M Q4_1`: architecture, size, file type.

Sizes go by the number of layers, as in llama.cpp's src/models (b11434), so that its tables and ours can be joined: the
256M of SmolLM2-135M is not our mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmkit.models.config import Config

UNKNOWN = "?B"

_SIZES: dict[str, dict[int, str]] = {
    "llama": {
        16: "1B", 22: "1B", 26: "3B", 28: "3B", 30: "256M", 36: "8B", 40: "13B", 48: "34B", 60: "30B",
    },
    "qwen2": {24: "1B", 28: "7B", 32: "7B", 36: "3B", 40: "13B", 48: "14B", 64: "32B", 80: "70B"},
    "qwen3": {28: "1.7B", 36: "8B", 40: "14B", 64: "32B"},
    "gemma3": {18: "270M", 26: "1B", 32: "8B", 34: "4B", 48: "12B", 62: "27B"},
}  # fmt: skip
# Where the layers alone do not tell: (architecture, layers, embedding) -> size.
_BY_WIDTH = {
    ("qwen2", 24, 1024): "0.5B",
    ("qwen2", 28, 1536): "1.5B",
    ("qwen3", 28, 1024): "0.6B",
    ("qwen3", 36, 2560): "4B",
}

_FILE_TYPES = {
    0: "all F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K - Medium",
    11: "Q3_K - Small", 12: "Q3_K - Medium", 13: "Q3_K - Large", 14: "Q4_K - Small", 15: "Q4_K - Medium",
    16: "Q5_K - Small", 17: "Q5_K - Medium", 18: "Q6_K", 19: "IQ2_XXS - 2.0625 bpw", 20: "IQ2_XS - 2.3125 bpw",
    21: "Q2_K - Small", 22: "IQ3_XS - 3.3 bpw", 23: "IQ3_XXS - 3.0625 bpw", 24: "IQ1_S - 1.5625 bpw",
    25: "IQ4_NL - 4.5 bpw", 26: "IQ3_S - 3.4375 bpw", 27: "IQ3_S mix - 3.66 bpw", 28: "IQ2_S - 2.5 bpw",
    29: "IQ2_M - 2.7 bpw", 30: "IQ4_XS - 4.25 bpw", 31: "IQ1_M - 1.75 bpw", 32: "BF16",
}  # fmt: skip
_GUESSED = {"F32": "all F32", **{f"Q{n}_K": f"Q{n}_K - Medium" for n in range(2, 6)}}


def model_type(config: Config, file_type: int | None, tensor_types: Mapping[str, int]) -> str:
    """The description; without `general.file_type` the type that most of `tensor_types` (name -> count) have, marked
    as guessed.
    """
    if file_type is None:
        common = max(tensor_types, key=lambda name: tensor_types[name])
        return f"{config.arch} {_size(config)} (guessed) {_GUESSED.get(common, common)}"
    return f"{config.arch} {_size(config)} {_FILE_TYPES.get(file_type, 'unknown, may not work')}"


def _size(config: Config) -> str:
    key = (config.arch, config.n_layer, config.n_embd)
    if config.arch == "llama" and config.n_layer == 32:
        return "3B" if config.n_vocab == 49152 else "7B" if config.n_vocab < 40000 else "8B"
    if config.arch == "llama" and config.n_layer == 80:
        return "65B" if config.n_head == config.n_head_kv else "70B"
    if config.arch == "qwen2" and config.n_layer == 40 and config.n_head == 20:
        return "4B"
    return _BY_WIDTH.get(key) or _SIZES.get(config.arch, {}).get(config.n_layer, UNKNOWN)
