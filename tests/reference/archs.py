"""What sets the architectures apart, for the twin only: one entry each, read off llama.cpp's `src/models`.

Owns no formula and no key. Written apart from `llmkit.models` on purpose: two readings of the same source.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Arch:
    """The defaults are a plain llama with split-half RoPE.

    rope: "norm" pairs neighbours, "neox" halves, "none". rope_layers: "all", "window" (those with a window; "window or
    all": all where none has one), "3 of 4".
    norm: "rms" or "layer". qk_norm: "head" normalises each head of q and k, "row" the whole row; by the model's norm.
    post_attention: the norm after attention, where the file has one. ffn_norm: the tensor before the feed-forward.
    parallel: the feed-forward reads "attn" (the attention's input, normed), "own" (the layer's input under its own
    norm), or "" (what attention left). activation: "silu" and "gelu" gate `ffn_up` by `ffn_gate`; "fused silu" finds
    both in `ffn_up`; "gelu plain" and "relu2" have no gate; "oai". ffn_scale: the feed-forward's `.scale` tensors
    count. window: "", "optional" or "required"; pattern: of its layers. swa_rope: window layers': "own" base and no
    scaling, "same base" and no scaling, or "own scaled". expert_norm: the chosen experts' weights are made to add up to
    1; gating: "softmax" before the choice or "after" it.
    """

    rope: str = "neox"
    rope_layers: str = "all"
    rope_factors: bool = False
    norm: str = "rms"
    qk_norm: str = ""
    post_attention: str = "post_attention_norm"
    ffn_norm: str = "ffn_norm"
    parallel: str = ""
    activation: str = "silu"
    ffn_scale: bool = False
    window: str = ""
    pattern: int = 0
    swa_rope: str = "own scaled"
    embed_sqrt: bool = False
    attention_scale: bool = False
    soft_caps: str = ""
    logit_scale: str = ""
    granite_scales: bool = False
    alibi: bool = False
    gating: str = "softmax"
    expert_norm: bool = True
    expert_scale: bool = False
    clamp: bool = False
    alibi_key: bool = False
    kq_power: float = -0.5
    parallel_key: bool = False
    temperature: bool = False
    yarn_log_mul: bool = False


LLAMA = Arch(rope="norm", rope_factors=True, ffn_scale=True, attention_scale=True, expert_scale=True)
QWEN2 = Arch()
GEMMA = Arch(activation="gelu", embed_sqrt=True)
GEMMA2 = replace(GEMMA, window="optional", pattern=2, soft_caps="attention final", attention_scale=True)
GEMMA3 = replace(GEMMA2, qk_norm="head", pattern=6, swa_rope="own", soft_caps="final")
LAYER_NORM = Arch(norm="layer")
COHERE2 = Arch(
    rope="norm", rope_layers="window", norm="layer", parallel="attn", ffn_scale=True, window="required", pattern=4,
    logit_scale="multiply",
)  # fmt: skip

ARCHS = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": Arch(qk_norm="head", ffn_scale=True),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "phi3": Arch(activation="fused silu", rope_factors=True),
    "smollm3": Arch(rope="norm", rope_layers="3 of 4", attention_scale=True),
    "granite": replace(LLAMA, ffn_scale=False, granite_scales=True, logit_scale="divide", expert_scale=False),
    "olmo2": Arch(qk_norm="row", window="optional", pattern=4, swa_rope="same base"),
    "gpt2": replace(LAYER_NORM, rope="none", activation="gelu plain"),
    "starcoder2": replace(LAYER_NORM, activation="gelu plain"),
    "stablelm": replace(LAYER_NORM, qk_norm="head", parallel="attn"),
    "cohere2": COHERE2,
    "glm4": Arch(rope="norm", activation="fused silu"),
    "falcon": replace(LAYER_NORM, parallel="attn", activation="gelu plain"),
    "bloom": replace(LAYER_NORM, rope="none", alibi=True, activation="gelu plain"),
    "qwen3moe": Arch(qk_norm="head", expert_scale=True),
    "gpt-oss": Arch(
        post_attention="", ffn_norm="post_attention_norm", activation="oai", window="required", pattern=2,
        gating="after", expert_norm=False,
    ),
    "internlm2": Arch(rope="norm"),
    "xverse": Arch(rope="norm"),
    "exaone": Arch(rope_factors=True),
    "seed_oss": Arch(post_attention="", ffn_norm="post_attention_norm", attention_scale=True),
    "arcee": Arch(rope="norm", rope_factors=True, attention_scale=True, activation="relu2"),
    "baichuan": Arch(rope="norm"),
    "chatglm": Arch(rope="norm", activation="fused silu"),
    "qwen2vl": Arch(),
    "minicpm": replace(
        LLAMA, ffn_scale=False, granite_scales=True, logit_scale="divide", expert_scale=False,
    ),
    "refact": Arch(rope="none", alibi=True),
    "command-r": replace(COHERE2, rope_layers="all", qk_norm="head", ffn_scale=False, window=""),
    "orion": LAYER_NORM,
    "olmo": replace(LAYER_NORM, rope="norm", clamp=True),
    "nemotron": replace(LAYER_NORM, activation="relu2"),
    "phi2": replace(LAYER_NORM, parallel="attn", activation="gelu plain"),
    "granitemoe": replace(LLAMA, granite_scales=True, logit_scale="divide", expert_scale=False),
    "olmoe": Arch(qk_norm="row", expert_norm=False),
    "starcoder": replace(LAYER_NORM, rope="none", activation="gelu plain"),
    "codeshell": replace(LAYER_NORM, activation="gelu plain"),
    "gptneox": replace(LAYER_NORM, activation="gelu plain", parallel="own", parallel_key=True),
    "mpt": replace(LAYER_NORM, rope="none", activation="gelu plain", alibi_key=True, clamp=True),
    "jais": replace(LAYER_NORM, rope="none", alibi_key=True, kq_power=-1.0),
    "jais2": replace(LAYER_NORM, activation="relu2"),
    "plamo": Arch(parallel="attn"),
    "ernie4_5": Arch(rope="norm"),
    "pangu-embedded": Arch(),
    "mistral3": replace(LLAMA, temperature=True, yarn_log_mul=True),
    "exaone4": Arch(
        qk_norm="head", rope_factors=True, rope_layers="window or all", window="64 layers", pattern=4,
    ),
    "mellum": Arch(qk_norm="head", window="optional", pattern=4, swa_rope="same base", expert_scale=True),
}  # fmt: skip
