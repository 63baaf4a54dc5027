"""What an architecture is made of, as a declaration: `architectures` has one entry each, `transformer` builds it.

The defaults are those of llama with split-half RoPE: RMS norms before attention and feed-forward, SiLU gating. What a
file may have or not (biases, fused matrices, a tied output, norms of q and k) is found in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

LAYER: Final = "layer"


@dataclass(frozen=True)
class Attention:
    """rope: `pairs` rotates neighbours, `halves` dimension i with i + n_rot/2. rope_layers: which have RoPE at all.

    partial_rotary: n_rot may be smaller than a head. rope_factors: the file may divide the frequencies; rope_switch: it
    may say that there is no RoPE. sections: it may or must name the parts of several positions of a token.
    qk_norm: normalises each `head` of q and k, or the whole `row`, where the file has weights for it.
    window: whether the file `may` or `must` say a window, or `window_default` holds; window_pattern: layer l has it
    unless l % pattern == pattern - 1, or as the file's flags say; window_layers: only models of so many layers have
    windows, 0 for all. window_rope: the frequencies of such layers are `scaled` as the others', or `plain`, or of a
    base of their own (`own`), neither scaled.
    scale: the file may say what scores are multiplied by, otherwise 1 / head_dim ** score_power. score_size: layers of
    the size that divides scores by sqrt(n_embd / n_head) instead of the head's. softcap: the default cap of scores, 0
    for never. clamp: the file may bound q, k and v. temperature: the file may let q grow with the position.
    yarn_log_mul: it may hold back what YaRN multiplies q and k by. alibi: scores fall with distance, `always`, as the
    `file` says, or in models of alibi_layers.
    """

    rope: Literal["pairs", "halves", "none"] = "halves"
    rope_layers: Literal["all", "window", "window if any", "3 of 4"] = "all"
    partial_rotary: bool = False
    rope_factors: bool = False
    rope_switch: bool = False
    sections: Literal["never", "may", "must"] = "never"
    qk_norm: Literal["none", "head", "row"] = "none"
    window: Literal["never", "may", "must"] = "never"
    window_default: int = 0
    window_pattern: int = 0
    window_layers: int = 0
    window_rope: Literal["scaled", "plain", "own"] = "scaled"
    scale: bool = False
    score_power: float = 0.5
    score_size: int = 0
    softcap: float = 0.0
    clamp: bool = False
    temperature: bool = False
    yarn_log_mul: bool = False
    alibi: Literal["never", "file", "always"] = "never"
    alibi_layers: int = 0


@dataclass(frozen=True)
class FeedForward:
    """function: of kernels.activation. fused: `ffn_up` holds gate and up. scale: the file's `.scale` tensors count.

    The rest is for mixtures of experts. softmax: over all experts, then the best are taken; otherwise over the best.
    normalise: the weights of the best add up to 1. expert_scale: the experts' `.scale` tensors count.
    """

    function: str = "swiglu"
    fused: bool = False
    scale: bool = False
    softmax: bool = True
    normalise: bool = True
    expert_scale: bool = False

    @property
    def gated(self) -> bool:
        return self.function in ("swiglu", "geglu", "swiglu_oai")


@dataclass(frozen=True)
class Multipliers:
    """By what embeddings and what a layer adds are multiplied where the file says nothing, and logits divided."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 0.0  # 0: the file must say it


@dataclass(frozen=True)
class Family:
    """One architecture.

    norm: `rms` or `layer`. pre_norm, post_norm: before and after each part; ffn_norm: the name of the one before the
    feed-forward. norm_weight: norms have weights. parallel: the feed-forward reads the attention's input (`shared`;
    where the file has a norm for it, the layer is sequential after all) or the layer's input under its own norm
    (`own`); parallel_switch: the file says whether it is. tied: the output matrix is always the embedding. embed_sqrt:
    embeddings are multiplied by sqrt(n_embd).
    multipliers: of (n_layer, n_embd), see Multipliers. logit_scale: the file may multiply the logits. final_softcap:
    the default cap of logits, 0 for none, None for never. experts: `never`, `may` (where expert_count is not 0) or
    `must`. required: tensors of each layer that others may lack; without: tensors that some files have and llmkit does
    not run.
    """

    attention: Attention = field(default_factory=Attention)
    feed_forward: FeedForward = field(default_factory=FeedForward)
    norm: Literal["rms", "layer"] = "rms"
    norm_weight: bool = True
    pre_norm: bool = True
    post_norm: bool = False
    ffn_norm: str = "ffn_norm"
    parallel: Literal["no", "shared", "own"] = "no"
    parallel_switch: bool = False
    tied: bool = False
    embed_sqrt: bool = False
    multipliers: Callable[[int, int], Multipliers] | None = None
    logit_scale: bool = False
    final_softcap: float | None = None
    experts: Literal["never", "may", "must"] = "never"
    required: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
