"""Builds the graph of any decoder that `Family` describes: embedding, layers, logits. Owns the order of operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from llmkit.models.config import Config
from llmkit.models.family import LAYER, Family
from llmkit.models.linear import Linear
from llmkit.models.mixture import mixture
from llmkit.models.weights import Part, Weights

if TYPE_CHECKING:
    from llmkit.models.outline import Builder
    from llmkit.models.values import Value


@dataclass
class Transformer:
    """One build of one model. n_ctx: the context's size, by which some models choose their RoPE factors."""

    g: Builder
    family: Family
    config: Config
    weights: Weights
    n_ctx: int

    def build(self) -> Value:
        """Adds the whole forward pass to the graph; the logits."""
        x = self._embed()
        tables = self._rope_tables()
        for layer in range(self.config.n_layer):
            for name in self.family.required:
                self.weights.info(f"blk.{layer}.{name}")
            for name in self.family.without:
                self.weights.refuse(f"blk.{layer}.{name}")
            self._layer(x, layer, tables[self.config.is_window_layer(layer)] if self.config.has_rope[layer] else None)
        return self._logits(x)

    def _embed(self) -> Value:
        config, weights = self.config, self.weights
        x = self.g.embed(weights.table("token_embd.weight", config.n_embd, config.n_vocab), config.embed_scale)
        if weights.has("position_embd.weight"):
            table = weights.table("position_embd.weight", config.n_embd, config.n_ctx_train)
            self.g.affine(self.g.embed(table, of_positions=True), weights.number(1.0), into=x)
        if weights.has("token_embd_norm.weight"):
            x = self._norm(x, "token_embd_norm")
        return x

    def _logits(self, x: Value) -> Value:
        """The final norm and the output matrix (the embedding's where there is none), for the rows that are wanted."""
        config, g = self.config, self.g
        h = self._norm(g.gather_outputs(x), "output_norm")
        name = "token_embd" if self.family.tied or not self.weights.has("output.weight") else "output"
        bias = self.weights.optional_vector("output.bias", config.n_vocab)
        logits = g.matmul(h, self.weights.matrix(f"{name}.weight", config.n_embd, config.n_vocab), bias=bias)
        if config.logit_scale != 1.0:
            logits = g.affine(logits, self.weights.number(config.logit_scale))
        if config.final_softcap:
            g.softcap(logits, config.final_softcap)
        return logits

    # -- parts ----------------------------------------------------------------------------------------------------

    def _norm(self, x: Value, name: str, into: Value | None = None) -> Value:
        """The family's norm by the tensors `name`.weight and .bias; added to `into` where that is given."""
        n, eps = self.config.n_embd, self.config.norm_eps
        weight = self.weights.vector(f"{name}.weight", n) if self.family.norm_weight else 0
        if self.family.norm != LAYER:
            return self.g.rms_norm(x, weight, eps, into=into)
        assert into is None, "no family adds what a layer norm gives"
        return self.g.layer_norm(x, weight, self.weights.optional_vector(f"{name}.bias", n), eps)

    def _add(self, x: Value, part: Linear, y: Value, norm: str) -> None:
        """x += part(y), through the norm after the part, or scaled, as the family does."""
        if self.family.post_norm:
            self._norm(part.apply(self.g, y), norm, into=x)
        elif self.config.residual_scale != 1.0:
            self.g.affine(part.apply(self.g, y), self.weights.number(self.config.residual_scale), into=x)
        else:
            part.apply(self.g, y, into=x)

    def _layer(self, x: Value, layer: int, table: Value | None) -> None:
        family, blk = self.family, f"blk.{layer}"
        h = self._norm(x, f"{blk}.attn_norm") if family.pre_norm else x
        parallel, own_norm = family.parallel if self.config.parallel else "no", f"{blk}.{family.ffn_norm}"
        if parallel == "shared" and self.weights.has(f"{own_norm}.weight"):
            parallel = "no"
        f = self._norm(x, own_norm) if parallel == "own" else h
        # Falcon 40B normalises once for attention and once for the feed-forward.
        h = self._norm(x, f"{blk}.attn_norm_2") if self.weights.has(f"{blk}.attn_norm_2.weight") else h
        self._attention(x, h, layer, table)
        if parallel == "no":
            f = self._norm(x, own_norm) if family.pre_norm else x
        self._feed_forward(x, f, blk)

    # -- attention ------------------------------------------------------------------------------------------------

    def _rope_tables(self) -> dict[bool, Value]:
        """Cosines and sines for layers without (False) and with a window; one for both where they are equal."""
        return self.rope_tables(self.g.rope_table)

    def rope_tables(self, make: Callable[[int, int, float], Value]) -> dict[bool, Value]:
        """The same, each made from the address of frequencies, n_rot, and what multiplies it."""
        config = self.config
        tables: dict[bool, Value] = {}
        for window in sorted({config.is_window_layer(i) for i in range(config.n_layer) if config.has_rope[i]}):
            rope = config.rope_window if window else config.rope
            if window and rope == config.rope and False in tables:
                tables[True] = tables[False]
                continue
            frequencies = rope.frequencies(config.n_rot, self._rope_factors())
            if config.multi_rope:
                frequencies[self._fourth_section()] = 0.0
            tables[window] = make(self.weights.keep(frequencies), config.n_rot, rope.table_scale)
        return tables

    def _fourth_section(self) -> npt.NDArray[np.bool_]:
        """Which pairs turn with the fourth part of a position, which text leaves at 0."""
        sections = self.config.rope_sections
        return np.asarray(np.arange(self.config.n_rot // 2) % sum(sections) >= sum(sections[:3]))

    @property
    def interleaved(self) -> bool:
        """Whether neighbours make a pair that turns, and not values of two halves."""
        return self.family.attention.rope == "pairs" and not self.config.multi_rope

    def _rope_factors(self) -> npt.NDArray[np.float32] | None:
        """What frequencies are divided by: one set, or (phi3) one for short contexts and one for long ones."""
        if not self.family.attention.rope_factors:
            return None
        length = "long" if self.n_ctx > self.config.n_ctx_orig else "short"
        names = [n for n in ("rope_freqs.weight", f"rope_factors_{length}.weight") if self.weights.has(n)]
        return self.weights.values(names[0], self.config.n_rot // 2) if names else None

    def _qkv(self, h: Value, blk: str) -> list[Value]:
        """q, k and v, from three matrices or from one that holds them below each other."""
        config, n_in = self.config, self.config.n_embd
        sizes = [config.n_head * config.head_dim] + 2 * [config.n_head_kv * config.head_dim]
        if self.weights.has(f"{blk}.attn_qkv.weight"):
            ends = [sum(sizes[: i + 1]) for i in range(3)]
            parts: list[Part] = [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
            matrices = [Linear(self.weights, f"{blk}.attn_qkv", n_in, ends[2], part=part) for part in parts]
        else:
            matrices = [Linear(self.weights, f"{blk}.attn_{c}", n_in, n) for c, n in zip("qkv", sizes, strict=True)]
        values = [matrix.apply(self.g, h) for matrix in matrices]
        if config.clamp_kqv:
            for value in values:
                self.g.clamp(value, config.clamp_kqv)
        return values

    def _norm_qk(self, x: Value, name: str, n_head: int) -> None:
        """Normalises q or k in place, each head or the whole row, where the file has weights for it."""
        kind, eps, head_dim = self.family.attention.qk_norm, self.config.norm_eps, self.config.head_dim
        if kind == "none" or not self.weights.has(f"{name}.weight"):
            return
        if kind == "row":
            self.g.rms_norm_in_place(x, self.weights.vector(f"{name}.weight", x.n_cols), eps, 1)
        elif self.family.norm == LAYER:
            weight = self.weights.vector(f"{name}.weight", head_dim, n_head)
            self.g.layer_norm(x, weight, 0, eps, n_groups=n_head, weight_stride=4 * head_dim, in_place=True)
        else:
            self.g.rms_norm_in_place(x, self.weights.vector(f"{name}.weight", head_dim), eps, n_head)

    def _attention(self, x: Value, h: Value, layer: int, table: Value | None) -> None:
        """x += attention(h)."""
        config, blk = self.config, f"blk.{layer}"
        q, k, v = self._qkv(h, blk)
        self._norm_qk(q, f"{blk}.attn_q_norm", config.n_head)
        self._norm_qk(k, f"{blk}.attn_k_norm", config.n_head_kv)
        if config.temperature:
            self.g.scale_rows(q, self._temperatures(), max(1, self.n_ctx))
        self.g.rope_store(q, k, v, table, layer, interleaved=self.interleaved)
        o = self.g.attention(
            q, layer, scale=config.score_scale, window=config.windows[layer], softcap=config.attn_softcap,
            slopes=self._slopes(), sinks=self.weights.optional_vector(f"{blk}.attn_sinks.weight", config.n_head),
        )  # fmt: skip
        output = Linear(self.weights, f"{blk}.attn_output", config.n_head * config.head_dim, config.n_embd)
        self._add(x, output, o, f"{blk}.post_attention_norm")

    def _temperatures(self) -> int:
        """Address of what q is multiplied by at each position (as in Llama 4 and Ministral 3)."""
        steps = np.arange(max(1, self.n_ctx)) // self.config.n_ctx_orig + 1.0
        return self.weights.keep((np.log(steps) * self.config.temperature + 1.0).astype(np.float32))

    def _slopes(self) -> int:
        """Address of ALiBi's slopes, one for each head; 0 without."""
        bias, n_head = self.config.alibi_bias, self.config.n_head
        if not bias:
            return 0
        n = 1 << (n_head.bit_length() - 1)
        powers = [h + 1 if h < n else h - n + 0.5 for h in range(n_head)]
        return self.weights.keep(np.array([2.0 ** (-bias / n * p) for p in powers], np.float32))

    # -- feed-forward ---------------------------------------------------------------------------------------------

    def _feed_forward(self, x: Value, h: Value, blk: str) -> None:
        """x += feed_forward(h)."""
        if self.config.experts is not None:
            mixture(self.g, self.family.feed_forward, self.config, self.weights, x, h, blk)
            return
        config, rule = self.config, self.family.feed_forward
        scale = "last" if rule.scale else "never"
        n_in, n_ff = config.n_embd, config.n_ff

        def linear(name: str, n_out: int, part: Part | None = None) -> Linear:
            return Linear(self.weights, f"{blk}.{name}", n_in, n_out, scale, part)

        if rule.fused:
            gate, up = (linear("ffn_up", 2 * n_ff, part).apply(self.g, h) for part in ((0, n_ff), (n_ff, 2 * n_ff)))
            y = self.g.activate(rule.function, gate, up)
        elif rule.gated:
            gate, up = (linear(name, n_ff).apply(self.g, h) for name in ("ffn_gate", "ffn_up"))
            y = self.g.activate(rule.function, gate, up)
        else:
            y = self.g.activate(rule.function, linear("ffn_up", n_ff).apply(self.g, h))
        self._add(x, Linear(self.weights, f"{blk}.ffn_down", n_ff, n_in, scale), y, f"{blk}.post_ffw_norm")
