"""The feed-forward part of a mixture of experts: a router, the experts, and a shared expert where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmkit.models.config import Config
from llmkit.models.family import FeedForward
from llmkit.models.linear import Linear
from llmkit.models.weights import Weights

if TYPE_CHECKING:
    from llmkit.models.outline import Builder
    from llmkit.models.values import Value


def mixture(g: Builder, rule: FeedForward, config: Config, weights: Weights, x: Value, h: Value, blk: str) -> None:
    """x += the weighted sum of the experts that each row of h chooses, and of the shared expert."""
    experts, plain = config.experts, config.residual_scale == 1.0
    assert experts is not None
    logits = Linear(weights, f"{blk}.ffn_gate_inp", config.n_embd, experts.n, "never").apply(g, h)
    slots = g.route(logits, experts.n_used, softmax=rule.softmax, normalise=rule.normalise, scale=experts.scale)

    def linear(y: Value, name: str, n_in: int, n_out: int) -> Value:
        full = f"{blk}.{name}_exps"
        scales = weights.optional_vector(f"{full}.scale", experts.n) if rule.expert_scale else 0
        biases = weights.optional_vector(f"{full}.bias", n_out, experts.n)
        w = weights.experts(f"{full}.weight", n_in, n_out, experts.n)
        return g.matmul_experts(y, w, scales=scales, biases=biases)

    spread = g.spread(h, slots)
    gate, up = (linear(spread, name, config.n_embd, experts.n_ff) for name in ("ffn_gate", "ffn_up"))
    down = linear(g.activate(rule.function, gate, up), "ffn_down", experts.n_ff, config.n_embd)
    y = g.combine(down, into=x if plain else None)
    if experts.n_ff_shared:
        _shared(g, rule, config, weights, h, y, blk)
    if not plain:
        g.affine(y, weights.number(config.residual_scale), into=x)


def _shared(g: Builder, rule: FeedForward, config: Config, weights: Weights, h: Value, y: Value, blk: str) -> None:
    """y += the shared expert, which every token takes."""
    assert config.experts is not None
    n_in, n_ff = config.n_embd, config.experts.n_ff_shared
    names = (f"{blk}.ffn_gate_shexp", f"{blk}.ffn_up_shexp")
    gate, up = (Linear(weights, name, n_in, n_ff, "never").apply(g, h) for name in names)
    Linear(weights, f"{blk}.ffn_down_shexp", n_ff, n_in, "never").apply(g, g.activate(rule.function, gate, up), into=y)
