"""The architectures that run, by the name in `general.architecture`: a declaration each, see `family`.

To add one, say here what sets it apart; `tests/reference/archs.py` says it once more, for the twin.
"""

from __future__ import annotations

import math
from dataclasses import replace

from llmkit.models.family import LAYER, Attention, Family, FeedForward, Multipliers

_HEAD_NORMS = ("attn_q_norm.weight", "attn_k_norm.weight")
_NORM_BIASES = ("attn_norm.bias", "ffn_norm.bias")
_PHI2_BIASES = ("attn_norm.bias", "attn_output.bias", "ffn_up.bias", "ffn_down.bias")
_OUTPUT_BIASES = ("attn_output.bias", "ffn_up.bias", "ffn_down.bias")

# Meta's Llama and its likes: Llama 2 and 3, Mistral, Mixtral, SmolLM2, Yi ...
_LLAMA = Family(
    attention=Attention(rope="pairs", rope_factors=True, scale=True),
    feed_forward=FeedForward(scale=True, expert_scale=True),
    experts="may",
)
_QWEN2 = Family()
_GRANITE = Family(
    Attention(rope="pairs", rope_factors=True, rope_switch=True, scale=True),
    multipliers=lambda _n_layer, _n_embd: Multipliers(),
)
_PLAIN_PAIRS = Family(Attention(rope="pairs"))
_GEMMA = Family(feed_forward=FeedForward("geglu"), embed_sqrt=True, tied=True)
_GEMMA2 = replace(
    _GEMMA,
    attention=Attention(window="may", window_default=4096, window_pattern=2, softcap=50.0, score_size=46),
    post_norm=True,
    final_softcap=30.0,
)
_GEMMA3 = replace(
    _GEMMA2,
    attention=Attention(qk_norm="head", window="may", window_pattern=6, window_rope="own", scale=True, score_size=62),
    final_softcap=0.0,
    tied=False,
    required=_HEAD_NORMS,
)
# GPT-2 and its likes: norms with biases, a feed-forward without a gate.
_GPT2 = Family(
    attention=Attention(rope="none"),
    feed_forward=FeedForward("gelu"),
    norm=LAYER,
    required=(*_NORM_BIASES, *_OUTPUT_BIASES),
)
_COHERE2 = Family(
    attention=Attention(rope="pairs", rope_layers="window", window="must", window_pattern=4),
    feed_forward=FeedForward(scale=True),
    norm=LAYER,
    parallel="shared",
    tied=True,
    logit_scale=True,
)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "qwen2": _QWEN2,
    "qwen3": Family(Attention(qk_norm="head"), FeedForward(scale=True), required=_HEAD_NORMS),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "phi3": Family(Attention(partial_rotary=True, rope_factors=True), FeedForward(fused=True)),
    "smollm3": Family(Attention(rope="pairs", rope_layers="3 of 4", scale=True)),
    "granite": _GRANITE,
    "granitemoe": replace(_GRANITE, experts="must"),
    "olmo2": Family(
        Attention(qk_norm="row", window="may", window_pattern=4, window_rope="plain"),
        pre_norm=False,
        post_norm=True,
        required=_HEAD_NORMS,
    ),
    "gpt2": replace(_GPT2, required=(*_GPT2.required, "attn_qkv.bias")),
    "starcoder2": replace(_GPT2, attention=Attention(partial_rotary=True)),
    "stablelm": Family(
        Attention(qk_norm="head", partial_rotary=True), norm=LAYER, parallel="shared", required=("attn_norm.bias",)
    ),
    "cohere2": _COHERE2,
    "glm4": Family(
        Attention(rope="pairs", partial_rotary=True, sections="may"), FeedForward(fused=True), post_norm=True
    ),
    "falcon": Family(feed_forward=FeedForward("gelu"), norm=LAYER, parallel="shared", required=("attn_norm.bias",)),
    "bloom": replace(_GPT2, attention=Attention(rope="none", alibi="always")),
    "qwen3moe": Family(Attention(qk_norm="head"), FeedForward(expert_scale=True), experts="must", required=_HEAD_NORMS),
    "gpt-oss": Family(
        Attention(window="must", window_pattern=2),
        FeedForward("swiglu_oai", softmax=False, normalise=False),
        ffn_norm="post_attention_norm",
        experts="must",
        required=("attn_sinks.weight", "attn_output.bias", "ffn_gate_inp.bias", "ffn_down_exps.bias"),
    ),
    # Those that cost no more than a mapping.
    "internlm2": _PLAIN_PAIRS,
    "xverse": _PLAIN_PAIRS,
    "exaone": Family(Attention(rope_factors=True)),
    "seed_oss": Family(Attention(scale=True), ffn_norm="post_attention_norm"),
    "arcee": Family(Attention(rope="pairs", rope_factors=True, scale=True), FeedForward("relu2")),
    "baichuan": Family(Attention(rope="pairs", alibi_layers=40)),
    "chatglm": Family(Attention(rope="pairs", partial_rotary=True), FeedForward(fused=True)),
    "qwen2vl": Family(Attention(sections="must")),
    "minicpm": replace(
        _LLAMA,
        feed_forward=FeedForward(),
        experts="never",
        multipliers=lambda n_layer, n_embd: Multipliers(12.0, 1.4 / math.sqrt(n_layer), 256.0 / n_embd),
    ),
    "refact": Family(Attention(rope="none", alibi="always")),
    "command-r": replace(_COHERE2, attention=Attention(rope="pairs", qk_norm="head"), feed_forward=FeedForward()),
    "orion": Family(norm=LAYER, required=_NORM_BIASES),
    "olmo": Family(Attention(rope="pairs", clamp=True), norm=LAYER, norm_weight=False),
    "nemotron": Family(Attention(partial_rotary=True), FeedForward("relu2"), norm=LAYER, required=_NORM_BIASES),
    "phi2": Family(
        Attention(partial_rotary=True), FeedForward("gelu"), norm=LAYER, parallel="shared", required=_PHI2_BIASES
    ),
    "starcoder": _GPT2,
    "codeshell": replace(_GPT2, attention=Attention()),
    "gptneox": replace(_GPT2, attention=Attention(partial_rotary=True), parallel="own", parallel_switch=True),
    "mpt": Family(
        Attention(rope="none", alibi="file", clamp=True),
        FeedForward("gelu"),
        norm=LAYER,
        without=("attn_q_norm.weight", "attn_k_norm.weight", "ffn.act.scales"),
    ),
    "jais": Family(Attention(rope="none", alibi="file", score_power=1.0), norm=LAYER, required=_NORM_BIASES),
    "jais2": Family(feed_forward=FeedForward("relu2"), norm=LAYER, required=(*_NORM_BIASES, *_OUTPUT_BIASES)),
    "plamo": Family(parallel="shared"),
    "ernie4_5": _PLAIN_PAIRS,
    "pangu-embedded": Family(required=("attn_output.bias",)),
    "mistral3": replace(
        _LLAMA,
        attention=Attention(rope="pairs", rope_factors=True, scale=True, temperature=True, yarn_log_mul=True),
    ),
    "exaone4": Family(
        Attention(
            qk_norm="head",
            rope_factors=True,
            rope_layers="window if any",
            window="may",
            window_default=4096,
            window_pattern=4,
            window_layers=64,
        ),
        pre_norm=False,
        post_norm=True,
        required=_HEAD_NORMS,
    ),
    "mellum": Family(
        Attention(qk_norm="head", window="may", window_pattern=4, window_rope="plain"),
        FeedForward(expert_scale=True),
        experts="must",
        required=_HEAD_NORMS,
    ),
    "olmoe": Family(Attention(qk_norm="row"), FeedForward(normalise=False), experts="must", required=_HEAD_NORMS),
}
