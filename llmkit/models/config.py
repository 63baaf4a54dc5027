"""Hyper-parameters of a model, read from GGUF metadata and checked against what its architecture needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from llmkit.errors import UnsupportedError
from llmkit.files.gguf_reader import GgufFile
from llmkit.models.family import LAYER, Family, Multipliers
from llmkit.models.metadata import Metadata
from llmkit.models.rope import Rope, original_context, read_ropes

MAX_LAYERS = 512
MAX_WIDTH = 1 << 20  # of any vector of a token
MAX_EXPERTS = 1024
MAX_TEMPERATURE = 100.0  # usual is 0.1
ALIBI_BIAS = 8.0  # of all models that have one and do not say


@dataclass(frozen=True)
class Experts:
    """A mixture of `n` experts of which a token takes `n_used`; `n_ff_shared` is 0 without a shared one."""

    n: int
    n_used: int
    n_ff: int
    n_ff_shared: int
    scale: float


@dataclass(frozen=True)
class Config:
    """What all families share. Names are GGUF's; `windows` holds 0 for a layer that sees all tokens.

    `rope_window` is the RoPE of layers with a window; `has_rope` goes by layer. A scale or cap that does nothing is 1
    or 0. temperature: q grows by this times the logarithm of the position in steps of `n_ctx_orig`. parallel: whether
    attention and feed-forward read the same input, in families where that is so.
    """

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_ctx_orig: int
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_rot: int
    norm_eps: float
    rope: Rope
    rope_window: Rope
    rope_sections: tuple[int, int, int, int]
    has_rope: tuple[bool, ...]
    windows: tuple[int, ...]
    score_scale: float
    attn_softcap: float
    final_softcap: float
    clamp_kqv: float
    temperature: float
    parallel: bool
    alibi_bias: float
    embed_scale: float
    residual_scale: float
    logit_scale: float
    experts: Experts | None

    @property
    def multi_rope(self) -> bool:
        """Positions have several parts (time, height, width): equal in text, but the pairing is by halves."""
        return min(self.rope_sections[:2]) > 0

    def is_window_layer(self, layer: int) -> bool:
        return self.windows[layer] > 0


def read_config(gguf: GgufFile, n_vocab: int, family: Family) -> Config:
    """Reads and checks the metadata; MetadataError names the key, UnsupportedError what is not run."""
    arch = gguf.str("general.architecture")
    read, attention = Metadata(gguf, arch), family.attention
    n_layer, n_embd = _n_layer(read), read.count("embedding_length", MAX_WIDTH)
    n_head = read.count("attention.head_count", n_embd)
    n_head_kv = read.count("attention.head_count_kv", n_head, n_head)
    if n_head % n_head_kv:
        raise read.bad("attention.head_count_kv", n_head_kv, f"a divisor of head_count {n_head}")
    head_dim = _head_dim(read, n_embd, n_head)
    n_rot = _n_rot(read, family, head_dim)
    n_ctx_train = read.count("context_length", 1 << 30)
    windows = _windows(read, family, n_layer)
    rope, rope_window = read_ropes(read, attention, n_rot, n_ctx_train)
    multipliers = _multipliers(read, family, n_layer, n_embd)
    experts = _experts(read, family)
    alibi_bias = _alibi_bias(read, family, n_layer)
    return Config(
        arch=arch,
        n_vocab=n_vocab,
        n_ctx_train=n_ctx_train,
        n_ctx_orig=original_context(read, n_ctx_train),
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=experts.n_ff if experts else read.count("feed_forward_length", MAX_WIDTH),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_rot=n_rot,
        norm_eps=read.real(f"attention.layer_norm_{'' if family.norm == LAYER else 'rms_'}epsilon"),
        rope=rope,
        rope_window=rope_window,
        rope_sections=read.sections("rope.dimension_sections", attention.sections),
        has_rope=(False,) * n_layer if alibi_bias else _has_rope(read, family, windows),
        windows=windows,
        score_scale=_score_scale(read, family, n_layer, head_dim, n_embd / n_head),
        attn_softcap=read.real("attn_logit_softcapping", attention.softcap) if attention.softcap else 0.0,
        final_softcap=_final_softcap(read, family),
        clamp_kqv=read.real("attention.clamp_kqv", 0.0) if attention.clamp else 0.0,
        temperature=_temperature(read, family),
        parallel=read.flag("use_parallel_residual") if family.parallel_switch else True,
        alibi_bias=alibi_bias,
        embed_scale=float(np.float32(math.sqrt(n_embd))) if family.embed_sqrt else multipliers.embedding,
        residual_scale=multipliers.residual,
        logit_scale=_logit_scale(read, family, multipliers),
        experts=experts,
    )


def _n_layer(read: Metadata) -> int:
    """All blocks but the last few that only predict further tokens."""
    n = read.count("block_count", MAX_LAYERS)
    return n - read.count("nextn_predict_layers", n - 1, 0, low=0)


def _head_dim(read: Metadata, n_embd: int, n_head: int) -> int:
    """The size of a head, which K and V must share."""
    if not read.has("attention.key_length") and n_embd % n_head:
        raise read.bad("attention.head_count", n_head, f"a divisor of embedding_length {n_embd}")
    head_dim = read.count("attention.key_length", 1024, n_embd // n_head)
    read.check("attention.key_length", head_dim, 1, 1024)
    value = read.count("attention.value_length", MAX_WIDTH, head_dim)
    if value != head_dim:
        raise read.bad("attention.value_length", value, f"the key length {head_dim}")
    return head_dim


def _n_rot(read: Metadata, family: Family, head_dim: int) -> int:
    """The dimensions of a head that are rotated, 0 without RoPE."""
    if family.attention.rope == "none":
        return 0
    n_rot = read.count("rope.dimension_count", MAX_WIDTH, head_dim)
    if n_rot > head_dim or (n_rot < head_dim and not family.attention.partial_rotary):
        raise read.bad("rope.dimension_count", n_rot, f"the key length {head_dim}")
    if n_rot % 2:
        raise read.bad("rope.dimension_count", n_rot, "an even number")
    return n_rot


def _windows(read: Metadata, family: Family, n_layer: int) -> tuple[int, ...]:
    """Each layer's sliding window: all but the last of every `pattern` layers have it, or as flags say."""
    attention, key = family.attention, "attention.sliding_window_pattern"
    if attention.window == "never" or (attention.window_layers and attention.window_layers != n_layer):
        return (0,) * n_layer
    must = attention.window == "must"
    window = read.count("attention.sliding_window", 1 << 30, None if must else attention.window_default, low=int(must))
    if window == 0:
        return (0,) * n_layer
    if read.has(key) and not isinstance(read.gguf.metadata[f"{read.arch}.{key}"], int):
        return tuple(window if flag else 0 for flag in read.flags(key, n_layer))
    n = read.number(key, attention.window_pattern)
    return tuple(window if n == 0 or layer % n < n - 1 else 0 for layer in range(n_layer))


def _has_rope(read: Metadata, family: Family, windows: tuple[int, ...]) -> tuple[bool, ...]:
    """By layer. Granite switches it off in models that were trained without."""
    if family.attention.rope == "none":
        return (False,) * len(windows)
    on = read.flag("rope.scaling.finetuned", True) if family.attention.rope_switch else True
    rules = {
        "all": (True,) * len(windows),
        "window": tuple(window > 0 for window in windows),
        "window if any": tuple(window > 0 or not any(windows) for window in windows),
        "3 of 4": tuple(layer % 4 != 3 for layer in range(len(windows))),
    }
    return tuple(on and rotated for rotated in rules[family.attention.rope_layers])


def _score_scale(read: Metadata, family: Family, n_layer: int, head_dim: int, per_head: float) -> float:
    said = read.real("attention.scale", 0.0) if family.attention.scale else 0.0
    size = per_head if n_layer == family.attention.score_size else head_dim
    return said or 1.0 / size**family.attention.score_power


def _temperature(read: Metadata, family: Family) -> float:
    if not family.attention.temperature:
        return 0.0
    found = read.real("attention.temperature_scale", 0.0)
    if found > MAX_TEMPERATURE:
        raise read.bad("attention.temperature_scale", found, f"a number from 0 to {MAX_TEMPERATURE:g}")
    return found


def _final_softcap(read: Metadata, family: Family) -> float:
    return 0.0 if family.final_softcap is None else read.real("final_logit_softcapping", family.final_softcap)


def _alibi_bias(read: Metadata, family: Family, n_layer: int) -> float:
    """How much the last head's scores lose a token, as a power of 2; 0 without ALiBi."""
    if family.attention.alibi == "file":
        return read.real("attention.max_alibi_bias", 0.0)
    return ALIBI_BIAS if family.attention.alibi == "always" or family.attention.alibi_layers == n_layer else 0.0


def _multipliers(read: Metadata, family: Family, n_layer: int, n_embd: int) -> Multipliers:
    if family.multipliers is None:
        return Multipliers()
    rule = family.multipliers(n_layer, n_embd)
    return Multipliers(
        read.positive("embedding_scale", rule.embedding),
        read.positive("residual_scale", rule.residual),
        read.positive("logit_scale", rule.logits) if rule.logits else read.real("logit_scale", None, 1e-30),
    )


def _logit_scale(read: Metadata, family: Family, multipliers: Multipliers) -> float:
    if family.multipliers:
        return 1.0 / multipliers.logits
    return read.positive("logit_scale", 1.0) if family.logit_scale else 1.0


def _experts(read: Metadata, family: Family) -> Experts | None:
    """The mixture of experts; None for a dense model."""
    n = read.count("expert_count", MAX_EXPERTS, 0, low=0)
    if family.experts == "never":
        if n:
            raise UnsupportedError(
                f"{read.gguf.path}: {read.arch} with experts ({read.arch}.expert_count is {n}) is not supported"
            )
        return None
    if family.experts == "must":
        read.check("expert_count", n, 1, MAX_EXPERTS)
    if n == 0:
        return None
    n_used = read.count("expert_used_count", n)
    if read.number("expert_group_count", 0) > 1:
        raise UnsupportedError(
            f"{read.gguf.path}: groups of experts ({read.arch}.expert_group_count) are not supported"
        )
    return Experts(
        n=n,
        n_used=n_used,
        n_ff=_expert_width(read, n_used),
        n_ff_shared=read.count("expert_shared_feed_forward_length", MAX_WIDTH, 0, low=0),
        scale=read.positive("expert_weights_scale", 1.0),
    )


def _expert_width(read: Metadata, n_used: int) -> int:
    """expert_feed_forward_length, or feed_forward_length where it is missing or 0."""
    said = read.count("expert_feed_forward_length", MAX_WIDTH, 0, low=0)
    return said or read.count("feed_forward_length", MAX_WIDTH)
