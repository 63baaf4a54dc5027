"""What some models do to attention's scores: cap them, take distance into account (ALiBi), or add a sink.

Each is a few instructions a tile where a model has it, and one test a tile where it has none.
"""

from __future__ import annotations

from llmkit.kernels.jit import helper
from llmkit.simd.ops import add, div, exp, fma, hmax, load_f32, load_i64, mul, splat, store_f32, sub, vload, vstore


@helper
def cap_scores(scores, n, cap):
    """n vectors: cap * tanh(score / cap), tanh(u) = 1 - 2 / (1 + e^2u)."""
    for i in range(n):
        e = exp(mul(splat(2.0), div(vload(scores + 64 * i), splat(cap))))
        tanh = sub(splat(1.0), div(splat(2.0), add(splat(1.0), e)))
        vstore(scores + 64 * i, mul(tanh, splat(cap)))


@helper
def put_distances(positions, n, out):
    """How far each of the n tokens at these int64 positions is from the first of them: float32 [32], 0 from n on."""
    first = load_i64(positions)
    for t in range(32):
        store_f32(out + 4 * t, float(load_i64(positions + 8 * t) - first) if t < n else 0.0)


@helper
def add_distance(scores, slopes, head, distances, distance):
    """Scores of one query on 32 cells: the first lies `distance` positions back, each other one `distances` nearer.

    slopes: a float32 for each head (Press et al. 2021, arXiv:2108.12409).
    """
    slope = load_f32(slopes + 4 * head)
    for half in range(2):
        at, nearer = scores + 64 * half, vload(distances + 64 * half)
        vstore(at, fma(splat(slope), sub(nearer, splat(float(distance))), vload(at)))


@helper
def apply_sink(sinks, head, maximum, total):
    """The factor of an output whose softmax has the sum `total` (float32 addresses both), with a head's sink beside it.

    A sink is one more score, which takes part in the sum and has no value (Xiao et al. 2023, arXiv:2309.17453).
    """
    m, sink = load_f32(maximum), load_f32(sinks + 4 * head)
    largest = max(m, sink)
    ours, its = exp(splat(m - largest)), exp(splat(sink - largest))
    sum_all = hmax(fma(splat(load_f32(total)), ours, its))
    return hmax(ours) / sum_all
