"""What a tensor's name says: its role, its layer, whether it may be quantised at all.

Owns the lists of names. Knows no types. Source: llama.cpp b11434, tensor_get_category and tensor_allows_quantization.
"""

import re

from ..files.gguf_tensors import TensorInfo

OUTPUT, TOKEN_EMBD, OTHER = "output", "token_embd", "other"
TOKEN_EMBDS = ("token_embd.weight", "per_layer_token_embd.weight")

# The first of these that is in a name decides.
_ROLES = (
    ("attn_qkv.weight", "attn_v"),
    ("attn_kv_b.weight", "attn_v"),
    ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"),
    ("attn_q.weight", "attn_q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"),
    ("ffn_gate", "ffn_gate"),
    ("ffn_down", "ffn_down"),
)

_NEVER_NAMES = ("position_embd.weight", "token_types.weight")
_NEVER_PARTS = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj"),
    *("ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight"),
    *("time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight"),
    *("time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight"),
    *("time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight"),
    *("time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight", "attn_rel_b.weight"),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger"),
    *("a.rvq.codebook", "mm.a.code_embd"),
)
_NEVER_PARTS_OF = {
    "glm5-next": (
        *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate"),
        *("indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight"),
        *("ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight"),
    )
}

_BLOCK = re.compile(r"blk\.(\d{1,9})\.")


def role(name: str) -> str:
    """`output`, `token_embd`, `attn_v` (also qkv and kv_b), `attn_k`, ..., `ffn_down`, or `other`."""
    if name == "output.weight":
        return OUTPUT
    if name in TOKEN_EMBDS:
        return TOKEN_EMBD
    return next((role for part, role in _ROLES if part in name), OTHER)


def layer(name: str) -> int | None:
    """The layer that a name begins with (`blk.N.`), or None."""
    found = _BLOCK.match(name)
    return int(found[1]) if found else None


def block_span(name: str) -> tuple[int, int, int] | None:
    """The first `blk.N.` anywhere in a name: N, and where its digits begin and end."""
    found = _BLOCK.search(name)
    return (int(found[1]), *found.span(1)) if found else None


def order(name: str) -> tuple[int, bytes]:
    """The key by which tensors are sorted: what belongs to no layer, then layer by layer, by name."""
    found = layer(name)
    return (-1 if found is None else found, name.encode())


def may_be_quantized(info: TensorInfo, arch: str) -> bool:
    """Whether a tensor is one of those that quantising is for: a matrix of weights of some size."""
    if all(n == 1 for n in info.shape[1:]) or not info.name.endswith("weight") or info.name in _NEVER_NAMES:
        return False
    return not any(part in info.name for part in (*_NEVER_PARTS, *_NEVER_PARTS_OF.get(arch, ())))
