"""A forward pass straight from a GGUF file: no cache, no batch, no plan.

Owns the order of operations of the architectures in `archs`. Refuses to remember anything between calls but the open
file. `act_quant=True` rounds the activations in front of quantised weights to 8 bits as the engine does; sums stay in
`dtype`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmkit.files.gguf_reader import GgufFile, open_gguf
from tests.reference import experts, kv, ops, quant
from tests.reference.hparams import read_hparams
from tests.reference.ops import Array

# Where a tensor's extra `.scale` goes: after the product and before the bias, after the bias, or nowhere. So llama.cpp
# builds each graph; every other choice misses the golden logits by an NMSE of 5e-5 or more.
SCALE_THEN_BIAS, BIAS_THEN_SCALE, NO_SCALE = "scale, bias", "bias, scale", "bias"


class Twin:
    """One open model that computes in `dtype`; `kv` rounds K and V as a cache of this type does, rotated where it is.

    n_ctx: the size of the context that is played, by which phi3 chooses its RoPE factors; 0 is the smallest.
    """

    def __init__(
        self,
        model: str | Path | GgufFile,
        dtype: Any = np.float64,
        act_quant: bool = False,
        kv: str | None = None,
        n_ctx: int = 0,
    ) -> None:
        self.gguf = model if isinstance(model, GgufFile) else open_gguf(model)
        self.hparams = read_hparams(self.gguf.metadata)
        self.dtype, self.act_quant, self.kv, self.n_ctx = np.dtype(dtype), act_quant, kv, n_ctx

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor, [n_rows, row_bytes]."""
        info = self.gguf.tensors[name]
        return self.gguf.tensor_bytes(info.name).reshape(info.n_rows, -1)

    def vector(self, name: str) -> Array | None:
        """A tensor's values in file order in the twin's dtype, None where the file has none."""
        if name not in self.gguf.tensors:
            return None
        return quant.dequantize_rows(self.raw(name), self.gguf.tensors[name].type).reshape(-1).astype(self.dtype)

    def matmul(self, x: Array, name: str, rows: slice = slice(None)) -> Array:
        """x times some rows of the tensor `name`."""
        return quant.matmul(x, self.raw(name)[rows], self.gguf.tensors[name].type, self.act_quant)

    def linear(self, x: Array, name: str, order: str = SCALE_THEN_BIAS) -> Array:
        """x times `name`.weight, then its bias and scale, where the file has them, in the given order."""
        y = self.matmul(x, name + ".weight")
        for step in order.split(", "):
            extra = self.vector(f"{name}.{step}")
            if extra is not None:
                y = y * extra if step == "scale" else y + extra
        return y

    def norm(self, x: Array, name: str, groups: int = 1) -> Array:
        """The model's norm by `name`.weight and .bias; x itself where the file has no such tensor.

        olmo's three norms have none, and normalise all the same. groups: rows of the weight, one a head."""
        weight, bias = self.vector(name + ".weight"), self.vector(name + ".bias")
        if weight is None:
            bare = self.hparams.name == "olmo" and name.rsplit(".", 1)[-1] in ("attn_norm", "ffn_norm", "output_norm")
            return ops.layer_norm(x, None, None, self.hparams.eps) if bare else x
        weight = weight.reshape(groups, -1) if weight.size == groups * x.shape[-1] and groups > 1 else weight
        if self.hparams.arch.norm == "layer":
            return ops.layer_norm(x, weight, bias, self.hparams.eps)
        return ops.rms_norm(x, weight, self.hparams.eps)

    def embed(self, ids: NDArray[np.int64]) -> Array:
        """Rows of token_embd, scaled, then those of position_embd, or normalised, as the file has tensors for it."""
        rows = quant.dequantize_rows(self.raw("token_embd.weight")[ids], self.gguf.tensors["token_embd.weight"].type)
        x = np.asarray(rows.astype(self.dtype) * self.dtype.type(self.hparams.embed_scale))
        if "position_embd.weight" in self.gguf.tensors:
            info = self.gguf.tensors["position_embd.weight"]
            x = x + quant.dequantize_rows(self.raw(info.name)[: len(ids)], info.type).astype(self.dtype)
        return self.norm(x, "token_embd_norm") if "token_embd_norm.weight" in self.gguf.tensors else x

    def qkv(self, h: Array, layer: int) -> list[Array]:
        """q, k and v [n, heads, head_dim], normalised but not yet rotated."""
        hp, blk, n = self.hparams, f"blk.{layer}.", h.shape[0]
        if blk + "attn_qkv.weight" in self.gguf.tensors:
            n_q, n_kv = hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim
            parts = np.split(self.linear(h, blk + "attn_qkv"), [n_q, n_q + n_kv], axis=-1)
        else:
            parts = [self.linear(h, f"{blk}attn_{c}") for c in "qkv"]
        if hp.clamp:
            parts = [np.clip(part, -hp.clamp, hp.clamp) for part in parts]
        if hp.arch.qk_norm == "row":
            parts[:2] = [self.norm(part, f"{blk}attn_{c}_norm") for part, c in zip(parts[:2], "qk", strict=True)]
        heads = [part.reshape(n, -1, hp.head_dim) for part in parts]
        if hp.arch.qk_norm == "head":
            for i, c in enumerate("qk"):
                heads[i] = self.norm(heads[i], f"{blk}attn_{c}_norm", heads[i].shape[1])
        return heads

    def rope_factors(self) -> Array | None:
        """By what the frequencies are divided: those of Llama 3, or phi3's for short and for long contexts."""
        if not self.hparams.arch.rope_factors:
            return None
        length = "long" if self.n_ctx > self.hparams.n_ctx_orig else "short"
        factors = self.vector("rope_freqs.weight")
        return self.vector(f"rope_factors_{length}.weight") if factors is None else factors

    def rotate(self, x: Array, layer: int, pos: NDArray[np.int64]) -> Array:
        """RoPE of q or k, if the layer has any."""
        hp = self.hparams
        rope = hp.rope[layer]
        if rope is None:
            return x
        tables = ops.rope_tables(pos, hp.n_rot, rope.base, rope.scale, self.rope_factors(), rope.yarn, rope.mscale)
        neox = hp.arch.rope == "neox" or (len(hp.sections) > 1 and min(hp.sections[:2]) > 0)
        return ops.rope(x, *tables, neox=neox)

    def kept(self, x: Array, size: int) -> Array:
        """K or V as the cache gives it back; `size` values are rotated together, where the type and 64 allow it."""
        assert self.kv is not None
        if self.kv in kv.FLOATS or x.shape[-1] % 64:
            return kv.rounded(self.kv, x).astype(self.dtype)
        return kv.hadamard(kv.rounded(self.kv, kv.hadamard(x, size)), size).astype(self.dtype)

    def self_attention(self, h: Array, layer: int) -> Array:
        """h [n, n_embd], normed -> [n, n_embd] before the residual and any post-norm."""
        hp, blk, n = self.hparams, f"blk.{layer}.", h.shape[0]
        q, k, v = self.qkv(h, layer)
        pos = np.arange(n)
        q, k = (self.rotate(t, layer, pos) for t in (q, k))
        if hp.temperature:
            grown = np.log(np.floor(pos / hp.n_ctx_orig) + 1) * hp.temperature + 1
            q = q * grown.astype(q.dtype)[:, None, None]
        if self.kv is not None:
            k, v = self.kept(k, k.shape[-1] & -k.shape[-1]), self.kept(v, 64)
        slopes = ops.alibi_slopes(hp.n_head, hp.max_alibi_bias) if hp.max_alibi_bias else None
        sinks = self.vector(blk + "attn_sinks.weight")
        out = ops.attention(q, k, v, hp.kq_scale, pos, pos, hp.window[layer], hp.attn_cap, slopes, sinks)
        return self.linear(out.reshape(n, -1), blk + "attn_output")

    def feed_forward(self, h: Array, layer: int) -> Array:
        """h [n, n_embd], normed -> [n, n_embd] before the residual and any post-norm."""
        blk, arch = f"blk.{layer}.", self.hparams.arch
        if blk + "ffn_gate_inp.weight" in self.gguf.tensors:
            return experts.mixture(self, h, blk)
        order = BIAS_THEN_SCALE if arch.ffn_scale else NO_SCALE
        up = self.linear(h, blk + "ffn_up", order)
        if arch.activation == "fused silu":
            gate, up = np.split(up, 2, axis=-1)
            y = ops.swiglu(gate, up)
        elif arch.activation in ("gelu plain", "relu2"):
            y = ops.gelu(up) if arch.activation == "gelu plain" else ops.relu2(up)
        else:
            act = ops.geglu if arch.activation == "gelu" else ops.swiglu
            y = act(self.linear(h, blk + "ffn_gate", order), up)
        return self.linear(y, blk + "ffn_down", order)

    def layer(self, x: Array, layer: int) -> Array:
        """One layer, residuals and all."""
        blk, hp = f"blk.{layer}.", self.hparams
        h = self.norm(x, blk + "attn_norm")
        # Falcon 40B normalises once for attention and once for the feed-forward.
        h_attention = self.norm(x, blk + "attn_norm_2") if blk + "attn_norm_2.weight" in self.gguf.tensors else h
        attention = self.norm(self.self_attention(h_attention, layer), blk + hp.arch.post_attention)
        attention = x + attention * x.dtype.type(hp.residual_scale)
        own_norm = blk + hp.arch.ffn_norm
        if hp.parallel == "own":
            h = self.norm(x, own_norm)
        elif not hp.parallel or own_norm + ".weight" in self.gguf.tensors:
            h = self.norm(attention, own_norm)
        out = self.norm(self.feed_forward(h, layer), blk + "post_ffw_norm")
        return np.asarray(attention + out * x.dtype.type(hp.residual_scale))

    def hidden(self, ids: Sequence[int]) -> Array:
        """The last layer's output [n, n_embd], before output_norm."""
        x = self.embed(np.asarray(ids, np.int64))
        for layer in range(self.hparams.n_layer):
            x = self.layer(x, layer)
        return x

    def forward(self, ids: Sequence[int], last: int = 0) -> Array:
        """Logits [n, n_vocab], or of the last `last` tokens only."""
        x = self.norm(self.hidden(ids)[-last if last else 0 :], "output_norm")
        tied = "output.weight" not in self.gguf.tensors
        logits = self.linear(x, "token_embd" if tied else "output")
        return ops.soft_cap(logits * x.dtype.type(self.hparams.logit_scale), self.hparams.final_cap)


def forward(
    model: str | Path | GgufFile, ids: Sequence[int], dtype: Any = np.float64, act_quant: bool = False
) -> NDArray[np.floating]:
    """Logits [n, n_vocab] of the ids, computed from nothing."""
    return Twin(model, dtype, act_quant).forward(ids)
