"""A forward pass straight from a GGUF file: no cache, no batch, no plan.

Owns the order of operations of llama, qwen2, qwen3 and gemma3. Refuses to remember anything between calls but the
open file. `act_quant=True` rounds the activations in front of quantised weights to 8 bits as the engine does; sums stay
in `dtype`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmkit.files.gguf_reader import GgufFile, open_gguf
from tests.reference import ops, quant
from tests.reference.hparams import read_hparams
from tests.reference.ops import Array

# Where a tensor's extra `.scale` goes: after the product and before the bias, after the bias, or nowhere. So llama.cpp
# builds each graph; every other choice misses the golden logits by an NMSE of 5e-5 or more.
SCALE_THEN_BIAS, BIAS_THEN_SCALE, NO_SCALE = "scale, bias", "bias, scale", "bias"
FFN_ORDER = {"llama": BIAS_THEN_SCALE, "qwen2": NO_SCALE, "qwen3": SCALE_THEN_BIAS, "gemma3": NO_SCALE}


def embed_scale(arch: str, n_embd: int) -> float:
    """gemma3 multiplies the embeddings by sqrt(n_embd) rounded to float32."""
    return float(np.sqrt(np.float32(n_embd))) if arch == "gemma3" else 1.0


class Twin:
    """One open model that computes in `dtype`; `kv_dtype` rounds K and V as a cache of that type does."""

    def __init__(
        self, model: str | Path | GgufFile, dtype: Any = np.float64, act_quant: bool = False, kv_dtype: Any = None
    ) -> None:
        self.gguf = model if isinstance(model, GgufFile) else open_gguf(model)
        self.hparams = read_hparams(self.gguf.metadata)
        self.dtype, self.act_quant, self.kv_dtype = np.dtype(dtype), act_quant, kv_dtype

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor, [n_rows, row_bytes]."""
        info = self.gguf.tensors[name]
        return self.gguf.data[info.offset : info.offset + info.n_bytes].reshape(info.n_rows, -1)

    def vector(self, name: str) -> Array | None:
        """A one-dimensional tensor in the twin's dtype, None where the file has none."""
        if name not in self.gguf.tensors:
            return None
        return quant.dequantize_rows(self.raw(name), self.gguf.tensors[name].type).reshape(-1).astype(self.dtype)

    def linear(self, x: Array, name: str, order: str = SCALE_THEN_BIAS) -> Array:
        """x times `name`.weight, then its bias and scale, where the file has them, in the given order."""
        info = self.gguf.tensors[name + ".weight"]
        y = quant.matmul(x, self.raw(name + ".weight"), info.type, self.act_quant)
        for step in order.split(", "):
            extra = self.vector(f"{name}.{step}")
            if extra is not None:
                y = y * extra if step == "scale" else y + extra
        return y

    def norm(self, x: Array, name: str) -> Array:
        """RMS norm by `name`.weight; x itself where the file has no such tensor."""
        weight = self.vector(name + ".weight")
        return x if weight is None else ops.rms_norm(x, weight, self.hparams.eps)

    def embed(self, ids: NDArray[np.int64]) -> Array:
        """Rows of token_embd, scaled."""
        rows = quant.dequantize_rows(self.raw("token_embd.weight")[ids], self.gguf.tensors["token_embd.weight"].type)
        scale = embed_scale(self.hparams.arch, self.hparams.n_embd)
        return np.asarray(rows.astype(self.dtype) * self.dtype.type(scale))

    def self_attention(self, h: Array, layer: int) -> Array:
        """h [n, n_embd], normed -> [n, n_embd] before the residual and any post-norm."""
        hp, blk, n = self.hparams, f"blk.{layer}.", h.shape[0]
        q, k, v = (self.linear(h, f"{blk}attn_{c}").reshape(n, -1, hp.head_dim) for c in "qkv")
        q, k = self.norm(q, blk + "attn_q_norm"), self.norm(k, blk + "attn_k_norm")
        pos = np.arange(n)
        factors = self.vector("rope_freqs.weight") if hp.arch == "llama" else None
        cos, sin = ops.rope_tables(pos, hp.head_dim, hp.freq_base[layer], hp.freq_scale[layer], factors)
        q, k = (ops.rope(t, cos, sin, neox=hp.arch != "llama") for t in (q, k))
        if self.kv_dtype is not None:
            k, v = (t.astype(self.kv_dtype).astype(self.dtype) for t in (k, v))
        out = ops.attention(q, k, v, hp.kq_scale, pos, pos, hp.window[layer])
        return self.linear(out.reshape(n, -1), blk + "attn_output")

    def feed_forward(self, h: Array, layer: int) -> Array:
        """h [n, n_embd], normed -> [n, n_embd] before the residual and any post-norm."""
        blk, order = f"blk.{layer}.", FFN_ORDER[self.hparams.arch]
        gate, up = self.linear(h, blk + "ffn_gate", order), self.linear(h, blk + "ffn_up", order)
        act = ops.geglu if self.hparams.arch == "gemma3" else ops.swiglu
        return self.linear(act(gate, up), blk + "ffn_down", order)

    def hidden(self, ids: Sequence[int]) -> Array:
        """The last layer's output [n, n_embd], before output_norm."""
        x = self.embed(np.asarray(ids, np.int64))
        for layer in range(self.hparams.n_layer):
            blk = f"blk.{layer}."
            x = x + self.norm(self.self_attention(self.norm(x, blk + "attn_norm"), layer), blk + "post_attention_norm")
            x = x + self.norm(self.feed_forward(self.norm(x, blk + "ffn_norm"), layer), blk + "post_ffw_norm")
        return x

    def forward(self, ids: Sequence[int], last: int = 0) -> Array:
        """Logits [n, n_vocab], or of the last `last` tokens only."""
        x = self.norm(self.hidden(ids)[-last if last else 0 :], "output_norm")
        tied = "output.weight" not in self.gguf.tensors
        logits = self.linear(x, "token_embd" if tied else "output")
        return ops.soft_cap(logits, self.hparams.soft_cap)


def forward(
    model: str | Path | GgufFile, ids: Sequence[int], dtype: Any = np.float64, act_quant: bool = False
) -> NDArray[np.floating]:
    """Logits [n, n_vocab] of the ids, computed from nothing."""
    return Twin(model, dtype, act_quant).forward(ids)
