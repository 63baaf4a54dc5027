"""The llama family: RMS norms before attention and a gated feed-forward; qwen2 and qwen3 differ in small things."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmkit.models.config import Config
from llmkit.models.family import Linear, output_logits, rope_frequencies
from llmkit.models.graph import Graph, Value
from llmkit.models.weights import Weights


@dataclass(frozen=True)
class Llama:
    """`interleaved`: RoPE pairs neighbours, as converted llama files want. `head_norms`: q and k are normalised a head.

    ffn_*: whether the feed-forward's matrices may have biases and scales, and which comes first.
    """

    interleaved: bool = True
    head_norms: bool = False
    rope_factors: bool = True
    ffn_bias: bool = True
    ffn_scale: bool = True
    ffn_scale_first: bool = False

    def build(self, g: Graph, config: Config, weights: Weights) -> Value:
        x = g.embed(weights.table("token_embd.weight", config.n_embd, config.n_vocab))
        table = g.rope_table(self._frequencies(config, weights), config.head_dim)
        for layer in range(config.n_layer):
            self._attention(g, config, weights, x, table, layer)
            self._feed_forward(g, config, weights, x, f"blk.{layer}")
        return output_logits(g, config, weights, x)

    def _frequencies(self, config: Config, weights: Weights) -> int:
        name, n = "rope_freqs.weight", config.head_dim // 2
        factors = weights.values(name, n) if self.rope_factors and weights.has(name) else None
        return weights.keep(rope_frequencies(config.rope_freq_base, config.rope_freq_scale, config.head_dim, factors))

    def _attention(self, g: Graph, config: Config, weights: Weights, x: Value, table: Value, layer: int) -> None:
        blk = f"blk.{layer}"
        h = g.rms_norm(x, weights.vector(f"{blk}.attn_norm.weight", config.n_embd), config.norm_eps)
        n_q, n_kv = config.n_head * config.head_dim, config.n_head_kv * config.head_dim
        q = Linear(weights, f"{blk}.attn_q", config.n_embd, n_q).apply(g, h)
        k = Linear(weights, f"{blk}.attn_k", config.n_embd, n_kv).apply(g, h)
        v = Linear(weights, f"{blk}.attn_v", config.n_embd, n_kv).apply(g, h)
        if self.head_norms:
            for y, name, n in ((q, "attn_q_norm", config.n_head), (k, "attn_k_norm", config.n_head_kv)):
                weight = weights.vector(f"{blk}.{name}.weight", config.head_dim)
                g.rms_norm_in_place(y, weight, config.norm_eps, n)
        g.rope_store(q, k, v, table, layer, interleaved=self.interleaved)
        o = g.attention(q, layer, scale=config.attention_scale or 1.0 / math.sqrt(config.head_dim))
        Linear(weights, f"{blk}.attn_output", n_q, config.n_embd).apply(g, o, into=x)

    def _feed_forward(self, g: Graph, config: Config, weights: Weights, x: Value, blk: str) -> None:
        def linear(name: str, n_in: int, n_out: int) -> Linear:
            return Linear(weights, f"{blk}.{name}", n_in, n_out, self.ffn_bias, self.ffn_scale, self.ffn_scale_first)

        h = g.rms_norm(x, weights.vector(f"{blk}.ffn_norm.weight", config.n_embd), config.norm_eps)
        gate = linear("ffn_gate", config.n_embd, config.n_ff).apply(g, h)
        up = linear("ffn_up", config.n_embd, config.n_ff).apply(g, h)
        linear("ffn_down", config.n_ff, config.n_embd).apply(g, g.gated("swiglu", gate, up), into=x)


LLAMA = Llama()
