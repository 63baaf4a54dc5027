"""A mixture of experts, token after token and expert after expert.

Owns how experts are chosen and weighted; knows of the model only what it is handed.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tests.reference import ops
from tests.reference.ops import Array

if TYPE_CHECKING:
    from tests.reference.model import Twin


def choose(twin: "Twin", h: Array, blk: str) -> tuple[NDArray[np.int64], Array]:
    """(experts [n, n_expert_used], best first; their weights)."""
    hp, arch = twin.hparams, twin.hparams.arch
    logits = twin.linear(h, blk + "ffn_gate_inp", "bias")
    scores = ops.softmax(logits) if arch.gating == "softmax" else logits
    chosen = np.argsort(-scores, axis=-1, kind="stable")[:, : hp.n_expert_used]
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if arch.gating == "after":
        weights = ops.softmax(weights)
    if arch.expert_norm:
        weights = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 2.0**-14)
    return chosen, weights * (hp.expert_weights_scale or 1.0)


def expert_linear(twin: "Twin", x: Array, name: str, expert: int) -> Array:
    """x through one expert's matrix, scale and bias."""
    info = twin.gguf.tensors[name + ".weight"]
    n_out, n_expert = info.shape[1], info.shape[2]
    y = twin.matmul(x, name + ".weight", slice(expert * n_out, (expert + 1) * n_out))
    scale, bias = twin.vector(name + ".scale"), twin.vector(name + ".bias")
    if scale is not None and twin.hparams.arch.expert_scale:
        y = y * scale[expert]
    return y if bias is None else y + bias.reshape(n_expert, n_out)[expert]


def mixture(twin: "Twin", h: Array, blk: str) -> Array:
    """h [n, n_embd] -> the weighted sum of its experts' outputs, and of the shared expert's where there is one."""
    chosen, weights = choose(twin, h, blk)
    out = np.zeros_like(h)
    act = ops.swiglu_oai if twin.hparams.arch.activation == "oai" else ops.swiglu
    for i, slot in np.ndindex(chosen.shape):
        x, expert = h[i : i + 1], int(chosen[i, slot])
        gate, up = (expert_linear(twin, x, f"{blk}ffn_{part}_exps", expert) for part in ("gate", "up"))
        out[i] += weights[i, slot] * expert_linear(twin, act(gate, up), f"{blk}ffn_down_exps", expert)[0]
    if blk + "ffn_up_shexp.weight" in twin.gguf.tensors:
        gate, up = (twin.linear(h, f"{blk}ffn_{part}_shexp", "bias") for part in ("gate", "up"))
        out = out + twin.linear(act(gate, up), blk + "ffn_down_shexp", "bias")
    return out
