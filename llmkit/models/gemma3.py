"""gemma3: norms before and after each part, normalised heads, GELU, window layers with their own RoPE."""

from __future__ import annotations

import math

import numpy as np

from llmkit.models.config import Config
from llmkit.models.family import Linear, output_logits, rope_frequencies
from llmkit.models.graph import Graph, Value
from llmkit.models.weights import Weights

_LAYERS_27B = 62  # of the one size that scales queries by n_embd / n_head instead of the head's size


class Gemma3:
    """The text model of Gemma 3 (arXiv:2503.19786)."""

    def build(self, g: Graph, config: Config, weights: Weights) -> Value:
        x = g.embed(
            weights.table("token_embd.weight", config.n_embd, config.n_vocab),
            float(np.float32(math.sqrt(config.n_embd))),
        )
        tables = {False: self._table(g, config, weights, window=False)}
        if any(config.is_window_layer(layer) for layer in range(config.n_layer)):
            tables[True] = self._table(g, config, weights, window=True)
        for layer in range(config.n_layer):
            self._attention(g, config, weights, x, tables[config.is_window_layer(layer)], layer)
            self._feed_forward(g, config, weights, x, f"blk.{layer}")
        logits = output_logits(g, config, weights, x)
        if config.final_softcap:
            g.softcap(logits, config.final_softcap)
        return logits

    def _table(self, g: Graph, config: Config, weights: Weights, *, window: bool) -> Value:
        base = config.rope_freq_base_swa if window else config.rope_freq_base
        scale = 1.0 if window else config.rope_freq_scale
        return g.rope_table(weights.keep(rope_frequencies(base, scale, config.head_dim, None)), config.head_dim)

    def _attention(self, g: Graph, config: Config, weights: Weights, x: Value, table: Value, layer: int) -> None:
        blk, eps = f"blk.{layer}", config.norm_eps
        h = g.rms_norm(x, weights.vector(f"{blk}.attn_norm.weight", config.n_embd), eps)
        n_q, n_kv = config.n_head * config.head_dim, config.n_head_kv * config.head_dim
        q = Linear(weights, f"{blk}.attn_q", config.n_embd, n_q).apply(g, h)
        k = Linear(weights, f"{blk}.attn_k", config.n_embd, n_kv).apply(g, h)
        v = Linear(weights, f"{blk}.attn_v", config.n_embd, n_kv).apply(g, h)
        g.rms_norm_in_place(q, weights.vector(f"{blk}.attn_q_norm.weight", config.head_dim), eps, config.n_head)
        g.rms_norm_in_place(k, weights.vector(f"{blk}.attn_k_norm.weight", config.head_dim), eps, config.n_head_kv)
        g.rope_store(q, k, v, table, layer, interleaved=False)
        window = config.window if config.is_window_layer(layer) else 0
        o = g.attention(q, layer, scale=self._scale(config), window=window)
        y = Linear(weights, f"{blk}.attn_output", n_q, config.n_embd).apply(g, o)
        g.rms_norm(y, weights.vector(f"{blk}.post_attention_norm.weight", config.n_embd), eps, into=x)

    @staticmethod
    def _scale(config: Config) -> float:
        if config.attention_scale:
            return config.attention_scale
        per_head = config.n_embd / config.n_head if config.n_layer == _LAYERS_27B else config.head_dim
        return 1.0 / math.sqrt(per_head)

    def _feed_forward(self, g: Graph, config: Config, weights: Weights, x: Value, blk: str) -> None:
        def linear(name: str, n_in: int, n_out: int) -> Linear:
            return Linear(weights, f"{blk}.{name}", n_in, n_out, has_bias=False, has_scale=False)

        h = g.rms_norm(x, weights.vector(f"{blk}.ffn_norm.weight", config.n_embd), config.norm_eps)
        gate = linear("ffn_gate", config.n_embd, config.n_ff).apply(g, h)
        up = linear("ffn_up", config.n_embd, config.n_ff).apply(g, h)
        y = linear("ffn_down", config.n_ff, config.n_embd).apply(g, g.gated("geglu", gate, up))
        g.rms_norm(y, weights.vector(f"{blk}.post_ffw_norm.weight", config.n_embd), config.norm_eps, into=x)


GEMMA3 = Gemma3()
