"""What a GGUF's metadata says about a model, for the twin only.

Owns the keys, their defaults and the rules of window layers; refuses to check anything: the fast reader of the same
keys, `llmkit.models`, does that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reference.archs import ARCHS, Arch


@dataclass(frozen=True)
class Rope:
    """What one layer's RoPE needs beside positions. scaled: YaRN with these corner dimensions, else None."""

    base: float
    scale: float
    mscale: float
    yarn: tuple[float, float] | None


@dataclass(frozen=True)
class Hparams:
    """Facts of one model; the last two go by layer. A window is in tokens, 0 for full attention; rope None: no RoPE."""

    name: str
    arch: Arch
    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_rot: int
    n_ctx_orig: int
    eps: float
    kq_scale: float
    attn_cap: float
    final_cap: float
    embed_scale: float
    residual_scale: float
    logit_scale: float
    max_alibi_bias: float
    clamp: float
    temperature: float
    parallel: str
    n_expert_used: int
    expert_weights_scale: float
    sections: tuple[int, ...]
    window: tuple[int, ...]
    rope: tuple[Rope | None, ...]


def _window_layers(get: Any, n_layer: int, window: int, pattern: int) -> list[bool]:
    pattern = get("attention.sliding_window_pattern", pattern)
    if window == 0:
        return [False] * n_layer
    if isinstance(pattern, int):
        return [pattern == 0 or layer % pattern < pattern - 1 for layer in range(n_layer)]
    return [bool(value) for value in pattern]


def _yarn_corners(n_rot: int, n_ctx_orig: int, base: float, fast: float, slow: float) -> tuple[float, float]:
    """The dimensions between which YaRN goes from no scaling to full scaling."""
    low, high = (n_rot * np.log(n_ctx_orig / (beta * 2 * np.pi)) / (2 * np.log(base)) for beta in (fast, slow))
    return max(0.0, float(np.floor(low))), min(n_rot - 1.0, float(np.ceil(high)))


def _ropes(get: Any, arch: Arch, local: list[bool], n_rot: int, n_ctx_orig: int) -> list[Rope | None]:
    base = float(get("rope.freq_base", 10000.0))
    factor = float(get("rope.scaling.factor", get("rope.scale_linear", 0.0)))
    kind = get("rope.scaling.type", "linear")
    scale = 1.0 / factor if factor != 0 and kind != "none" else 1.0
    mscale = float(get("rope.scaling.attn_factor", 1.0))
    yarn = None
    if kind == "yarn":
        # What llama.cpp multiplies the tables by, minus what it takes back: 1 + 0.1 ln(factor), or 1 below.
        held_back = float(get("rope.scaling.yarn_log_multiplier", 0.0)) if arch.yarn_log_mul else 0.0
        mscale *= (1 + 0.1 * np.log(1 / scale)) / (1 + 0.1 * held_back * np.log(1 / scale)) if scale < 1 else 1.0
        yarn = _yarn_corners(n_rot, n_ctx_orig, base, 32.0, 1.0)
    full = Rope(base, scale, mscale, yarn)
    base_swa = float(get("rope.freq_base_swa", 10000.0 if arch.swa_rope == "own" else base))
    window = {
        "own": Rope(base_swa, 1.0, mscale, None),
        "same base": Rope(base, 1.0, 1.0, None),
        "own scaled": Rope(base_swa, scale, mscale, yarn),
    }[arch.swa_rope]
    ropes: list[Rope | None] = [window if is_local else full for is_local in local]
    for layer, is_local in enumerate(local):
        skipped = layer % 4 == 3 if arch.rope_layers == "3 of 4" else not is_local
        if arch.rope_layers == "window or all" and not any(local):
            skipped = False
        off = arch.rope == "none" or (arch.granite_scales and not get("rope.scaling.finetuned", True))
        if off or (arch.rope_layers != "all" and skipped):
            ropes[layer] = None
    return ropes


def _kq_scale(get: Any, name: str, arch: Arch, n_layer: int, head_dim: int, per_head: float) -> float:
    big_gemma = (name == "gemma3" and n_layer == 62) or (name == "gemma2" and n_layer == 46)
    rule = float((per_head if big_gemma else head_dim) ** arch.kq_power)
    return (float(get("attention.scale", 0.0)) if arch.attention_scale else 0.0) or rule


def _caps(get: Any, arch: Arch, name: str) -> tuple[float, float]:
    """Of attention and of logits; gemma2 has its own where the file says none."""
    attention = float(get("attn_logit_softcapping", 50.0)) if "attention" in arch.soft_caps else 0.0
    final = float(get("final_logit_softcapping", 30.0 if name == "gemma2" else 0.0)) if "final" in arch.soft_caps else 0
    return attention, float(final)


def read_hparams(metadata: Mapping[str, Any]) -> Hparams:
    """Reads the keys of `<architecture>.*` with llama.cpp's defaults."""
    name = str(metadata["general.architecture"])
    arch = ARCHS[name]

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{name}.{key}", default)

    n_embd, n_layer, n_head = int(get("embedding_length")), int(get("block_count")), int(get("attention.head_count"))
    head_dim = int(get("attention.key_length", n_embd // n_head))
    n_rot, n_ctx = int(get("rope.dimension_count", head_dim)), int(get("context_length", 0))
    n_ctx_orig = int(get("rope.scaling.original_context_length", n_ctx))
    window = int(get("attention.sliding_window", 4096 if name in ("gemma2", "exaone4") else 0)) if arch.window else 0
    window = 0 if arch.window == "64 layers" and n_layer != 64 else window
    local = _window_layers(get, n_layer, window, arch.pattern)
    attn_cap, final_cap = _caps(get, arch, name)
    alibi = arch.alibi or (name == "baichuan" and n_layer == 40)  # Baichuan 13B
    max_bias = float(get("attention.max_alibi_bias", 0.0)) if arch.alibi_key else 8.0 * alibi
    ropes = [None] * n_layer if alibi else _ropes(get, arch, local, n_rot, n_ctx_orig)
    logit_scale = float(get("logit_scale", 0.0)) if arch.logit_scale else 0.0
    if logit_scale and arch.logit_scale == "divide":
        logit_scale = 1.0 / logit_scale
    return Hparams(
        name=name,
        arch=arch,
        n_embd=n_embd,
        n_layer=n_layer,
        n_head=n_head,
        n_head_kv=int(get("attention.head_count_kv", n_head)),
        head_dim=head_dim,
        n_rot=n_rot,
        n_ctx_orig=n_ctx_orig,
        eps=float(get(f"attention.layer_norm_{'rms_' * (arch.norm == 'rms')}epsilon")),
        kq_scale=_kq_scale(get, name, arch, n_layer, head_dim, n_embd / n_head),
        attn_cap=attn_cap,
        final_cap=final_cap,
        embed_scale=_embed_scale(get, arch, n_embd),
        residual_scale=(float(get("residual_scale", 0.0)) if arch.granite_scales else 0.0) or 1.0,
        logit_scale=logit_scale or 1.0,
        max_alibi_bias=max_bias,
        clamp=float(get("attention.clamp_kqv", 0.0)) if arch.clamp else 0.0,
        temperature=float(get("attention.temperature_scale", 0.0)) if arch.temperature else 0.0,
        parallel=arch.parallel if not arch.parallel_key or get("use_parallel_residual") else "",
        n_expert_used=int(get("expert_used_count", 0)),
        expert_weights_scale=float(get("expert_weights_scale", 0.0)),
        sections=tuple(int(n) for n in get("rope.dimension_sections", ())),
        window=tuple(window if is_local else 0 for is_local in local),
        rope=tuple(ropes),
    )


def _embed_scale(get: Any, arch: Arch, n_embd: int) -> float:
    """Gemmas multiply the embeddings by sqrt(n_embd) rounded to float32."""
    if arch.embed_sqrt:
        return float(np.sqrt(np.float32(n_embd)))
    return (float(get("embedding_scale", 0.0)) if arch.granite_scales else 0.0) or 1.0
