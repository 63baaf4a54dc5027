"""What a GGUF's metadata says about a model of the four architectures, for the twin only.

Owns the keys, their defaults and the rules of gemma3's window layers; refuses to check anything: the fast reader of
the same keys, `llmkit.models`, does that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ARCHS = ("llama", "qwen2", "qwen3", "gemma3")


@dataclass(frozen=True)
class Hparams:
    """Facts of one model; the last three go by layer. A window is in tokens, 0 for full attention."""

    arch: str
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    eps: float
    kq_scale: float
    soft_cap: float
    window: tuple[int, ...]
    freq_base: tuple[float, ...]
    freq_scale: tuple[float, ...]


def _window_layers(get: Any, n_layer: int, window: int) -> list[bool]:
    pattern = get("attention.sliding_window_pattern", 6)
    if window == 0:
        return [False] * n_layer
    if isinstance(pattern, int):
        return [pattern == 0 or layer % pattern < pattern - 1 for layer in range(n_layer)]
    return [bool(value) for value in pattern]


def read_hparams(metadata: Mapping[str, Any]) -> Hparams:
    """Reads the keys of `<architecture>.*` with llama.cpp's defaults."""
    arch = str(metadata["general.architecture"])
    assert arch in ARCHS, arch

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{arch}.{key}", default)

    n_embd, n_layer, n_head = int(get("embedding_length")), int(get("block_count")), int(get("attention.head_count"))
    head_dim = int(get("attention.key_length", n_embd // n_head))
    gemma = arch == "gemma3"
    window = int(get("attention.sliding_window", 0)) if gemma else 0
    local = _window_layers(get, n_layer, window)
    factor = float(get("rope.scaling.factor", get("rope.scale_linear", 0.0)))
    scaled = 1.0 / factor if factor != 0 and get("rope.scaling.type", "linear") == "linear" else 1.0
    base, base_swa = float(get("rope.freq_base", 10000.0)), float(get("rope.freq_base_swa", 10000.0))
    per_head = n_embd / n_head if gemma and n_layer == 62 else head_dim
    return Hparams(
        arch=arch,
        n_embd=n_embd,
        n_layer=n_layer,
        n_head=n_head,
        n_head_kv=int(get("attention.head_count_kv", n_head)),
        head_dim=head_dim,
        eps=float(get("attention.layer_norm_rms_epsilon")),
        kq_scale=(float(get("attention.scale", 0.0)) if arch in ("llama", "gemma3") else 0.0) or per_head**-0.5,
        soft_cap=float(get("final_logit_softcapping", 0.0)) if gemma else 0.0,
        window=tuple(window if is_local else 0 for is_local in local),
        freq_base=tuple(base_swa if is_local else base for is_local in local),
        freq_scale=tuple(1.0 if is_local else scaled for is_local in local),
    )
