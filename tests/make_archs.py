"""Which tensors and metadata keys the files of each architecture have, for tiny models.

Owns names and shapes, as llama.cpp's converter writes them; knows no values. One entry an architecture.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.make_models import TinyModel

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Files:
    """What a file of an architecture has beside attn_norm, attn_{q,k,v}, attn_output, ffn_norm and ffn_{up,down}.

    norms: of each layer. biased: names of tensors, each of which has a bias as long as what it gives. qkv: one matrix
    for q, k and v. ffn: "gate", "fused" (ffn_up is twice as wide), "plain" or "experts". keys: of the architecture,
    without its name. eps: which norm's. no_output_norm: norms have no weights. tied: never an output matrix. extra: by
    name the sizes of more tensors of a layer; model: of the model.
    """

    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    biased: tuple[str, ...] = ()
    qkv: bool = False
    ffn: str = "gate"
    keys: dict[str, Any] = field(default_factory=dict)
    eps: str = "rms_epsilon"
    rope: bool = True
    window: bool = False
    tied: bool = False
    no_output_norm: bool = False
    head_norms: str = ""
    extra: dict[str, str] = field(default_factory=dict)
    model: dict[str, str] = field(default_factory=dict)


_POST = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
_QKV = ("attn_q", "attn_k", "attn_v")
_GEMMA = Files(tied=True)
_LAYER = Files(eps="epsilon", biased=("attn_norm", "ffn_norm", "output_norm"))
_GPT = replace(_LAYER, biased=(*_LAYER.biased, "attn_output", "ffn_up", "ffn_down"), ffn="plain")
_GPT2 = replace(_GPT, biased=(*_GPT.biased, "attn_qkv"), qkv=True, rope=False)

FILES = {
    "llama": Files(),
    "qwen2": Files(biased=_QKV),
    "qwen3": Files(head_norms="head"),
    "gemma": _GEMMA,
    "gemma2": Files(norms=_POST, window=True, tied=True),
    "gemma3": Files(norms=_POST, window=True, head_norms="head"),
    "phi3": Files(ffn="fused", qkv=True, model={"rope_factors_long": "pairs", "rope_factors_short": "pairs"}),
    "smollm3": Files(),
    "granite": Files(keys={"logit_scale": 4.0, "residual_scale": 0.5, "embedding_scale": 3.0, "attention.scale": 0.2}),
    "olmo2": Files(norms=("post_attention_norm", "post_ffw_norm"), head_norms="row", window=True),
    "gpt2": replace(_GPT2, model={"position_embd": "positions"}),
    "starcoder2": replace(_GPT, biased=(*_GPT.biased, *_QKV)),
    "stablelm": replace(_LAYER, head_norms="rows", keys={"rope.dimension_count": "part"}),
    "cohere2": Files(eps="epsilon", norms=("attn_norm",), window=True, tied=True, keys={"logit_scale": 0.25}),
    "glm4": Files(norms=_POST, ffn="fused", keys={"rope.dimension_count": "part"}, biased=_QKV),
    "falcon": Files(
        eps="epsilon", norms=("attn_norm",), biased=("attn_norm", "output_norm"), qkv=True, ffn="plain"
    ),
    "bloom": replace(_GPT2, biased=(*_GPT2.biased, "token_embd_norm"), model={"token_embd_norm": "embd"}),
    "qwen3moe": Files(head_norms="head", ffn="experts"),
    "gpt-oss": Files(
        norms=("attn_norm", "post_attention_norm"),
        biased=(*_QKV, "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
        ffn="experts", window=True, extra={"attn_sinks": "heads"},
    ),
    "internlm2": Files(),
    "xverse": Files(),
    "exaone": Files(model={"rope_freqs": "pairs"}),
    "seed_oss": Files(norms=("attn_norm", "post_attention_norm"), biased=_QKV),
    "arcee": Files(ffn="plain"),
    "baichuan": Files(),
    "chatglm": Files(ffn="fused", qkv=True, biased=("attn_qkv",), keys={"rope.dimension_count": "part"}),
    "qwen2vl": Files(biased=_QKV, keys={"rope.dimension_sections": np.array([8, 12, 12, 0], np.int32)}),
    "minicpm": Files(keys={"embedding_scale": 5.0, "residual_scale": 0.3, "logit_scale": 2.0}),
    "refact": Files(rope=False),
    "command-r": Files(eps="epsilon", norms=("attn_norm",), tied=True, keys={"logit_scale": 0.25}),
    "orion": _LAYER,
    "olmo": Files(eps="epsilon", norms=(), no_output_norm=True, keys={"attention.clamp_kqv": 0.5}),
    "nemotron": replace(
        _LAYER, biased=(*_GPT.biased,), ffn="plain", keys={"rope.dimension_count": "part"}
    ),
    "phi2": replace(
        _GPT2, rope=True, norms=("attn_norm",), biased=(*_GPT2.biased, "output"),
        keys={"rope.dimension_count": "part"},
    ),
    "granitemoe": Files(ffn="experts", keys={"logit_scale": 4.0, "residual_scale": 0.5, "embedding_scale": 3.0}),
    "olmoe": Files(head_norms="row", ffn="experts"),
    "starcoder": replace(_GPT2, model={"position_embd": "positions"}),
    "codeshell": replace(_GPT2, rope=True),
    "gptneox": replace(_GPT2, rope=True, keys={"rope.dimension_count": "part", "use_parallel_residual": True}),
    "mpt": Files(
        eps="epsilon", qkv=True, rope=False, ffn="plain", tied=True,
        keys={"attention.max_alibi_bias": 4.0, "attention.clamp_kqv": 0.5},
    ),
    "jais": replace(
        _LAYER, qkv=True, rope=False, keys={"attention.max_alibi_bias": 8.0},
        biased=(*_LAYER.biased, "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    ),
    "jais2": replace(_GPT, biased=(*_GPT.biased, *_QKV)),
    "plamo": Files(norms=("attn_norm",)),
    "ernie4_5": Files(),
    "pangu-embedded": Files(biased=(*_QKV, "attn_output")),
    "mistral3": Files(
        keys={
            "attention.temperature_scale": 0.3, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16, "rope.scaling.yarn_log_multiplier": 0.5,
        },
    ),
    "exaone4": Files(norms=("post_attention_norm", "post_ffw_norm"), head_norms="head"),
    "mellum": Files(head_norms="head", ffn="experts", window=True),
}  # fmt: skip


def hyperparameters(model: "TinyModel", n_vocab: int) -> dict[str, object]:
    """All metadata but the vocabulary."""
    files, arch = FILES[model.arch], model.arch
    metadata: dict[str, object] = {
        "vocab_size": n_vocab,
        "context_length": model.n_ctx_train,
        "embedding_length": model.n_embd,
        "block_count": model.n_layer,
        "feed_forward_length": model.n_ff,
        "attention.head_count": model.n_head,
        "attention.head_count_kv": model.n_head_kv,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        f"attention.layer_norm_{files.eps}": 1e-5,
    }
    if files.rope:
        metadata |= {"rope.dimension_count": model.head_dim, "rope.freq_base": model.rope_freq_base}
    if files.window:
        metadata["attention.sliding_window"] = model.window
        if model.window_pattern:
            metadata["attention.sliding_window_pattern"] = np.array(model.window_pattern, dtype=np.uint32)
    if files.ffn == "experts" or model.moe:
        metadata |= {"expert_count": model.n_expert, "expert_used_count": model.n_expert_used}
        metadata |= {"expert_feed_forward_length": model.n_ff}
    part = model.head_dim // 2
    metadata |= {k: part if isinstance(v, str) and v == "part" else v for k, v in files.keys.items()}
    return {"general.architecture": arch, "general.name": f"tiny {arch}"} | {
        f"{arch}.{key}": value for key, value in metadata.items()
    }


def shapes(model: "TinyModel", n_vocab: int) -> Shapes:
    """The tensors by name."""
    files = FILES[model.arch]
    sizes = {"pairs": model.n_rot // 2, "embd": model.n_embd, "heads": model.n_head}
    out: Shapes = {"token_embd.weight": (model.n_embd, n_vocab), "output_norm.weight": (model.n_embd,)}
    for name, size in files.model.items():
        out[f"{name}.weight"] = (model.n_embd, model.n_ctx_train) if size == "positions" else (sizes[size],)
    if not (model.tied or files.tied):
        out["output.weight"] = (model.n_embd, n_vocab)
    if files.no_output_norm:
        del out["output_norm.weight"]
    for i in range(model.n_layer):
        for name, shape in _layer(model, files, sizes).items():
            out[f"blk.{i}.{name}"] = shape
    return out | _biases(out, files)


def _layer(model: "TinyModel", files: Files, sizes: dict[str, int]) -> Shapes:
    """The tensors of one layer, by name without `blk.N.`."""
    n_embd, n_q, n_kv = model.n_embd, model.n_head * model.head_dim, model.n_head_kv * model.head_dim
    out: Shapes = {f"{name}.weight": (n_embd,) for name in files.norms}
    if files.qkv:
        out["attn_qkv.weight"] = (n_embd, n_q + 2 * n_kv)
    else:
        out |= {"attn_q.weight": (n_embd, n_q), "attn_k.weight": (n_embd, n_kv), "attn_v.weight": (n_embd, n_kv)}
    out["attn_output.weight"] = (n_q, n_embd)
    q_norm, k_norm = {
        "": ((), ()),
        "head": ((model.head_dim,), (model.head_dim,)),
        "row": ((n_q,), (n_kv,)),
        "rows": ((model.head_dim, model.n_head), (model.head_dim, model.n_head_kv)),
    }[files.head_norms]
    if q_norm:
        out |= {"attn_q_norm.weight": q_norm, "attn_k_norm.weight": k_norm}
    out |= {f"{name}.weight": (sizes[size],) for name, size in files.extra.items()}
    return out | _feed_forward(model, "experts" if model.moe else files.ffn)


def _feed_forward(model: "TinyModel", kind: str) -> Shapes:
    n_embd, n_ff, n = model.n_embd, model.n_ff, model.n_expert
    if kind == "experts":
        return {
            "ffn_gate_inp.weight": (n_embd, n),
            "ffn_gate_exps.weight": (n_embd, n_ff, n),
            "ffn_up_exps.weight": (n_embd, n_ff, n),
            "ffn_down_exps.weight": (n_ff, n_embd, n),
        }
    up: Shapes = {"ffn_up.weight": (n_embd, 2 * n_ff if kind == "fused" else n_ff), "ffn_down.weight": (n_ff, n_embd)}
    return up | ({"ffn_gate.weight": (n_embd, n_ff)} if kind == "gate" else {})


def _biases(out: Shapes, files: Files) -> Shapes:
    """A bias as long as what the tensor gives: a norm's whole length, a matrix's rows, those of all experts."""
    biases: Shapes = {}
    for name, shape in out.items():
        base = name.removesuffix(".weight")
        if base.rsplit(".", 1)[-1] in files.biased:
            biases[f"{base}.bias"] = shape if len(shape) == 1 else shape[1:]
    return biases
