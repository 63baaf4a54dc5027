"""Online softmax of four queries on one tile of 32 cells."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from llmkit.simd import emitter as em
from llmkit.simd.ops import emit_exp
from llmkit.simd.vector import operation

Value = Any
i64, void = types.int64, types.void

_NEG_INF = float("-inf")


def _largest(e: em.Emitter, a: Value, b: Value) -> Value:
    """The larger; one instruction. A NaN may get lost here, but its own weight exp(NaN) keeps it."""
    return e.b.select(e.b.fcmp_ordered(">", a, b), a, b)


def _across(e: em.Emitter, rows: list[Value], combine: Any) -> Value:
    """Of four rows of 16 lanes one vector: lane 4k + t is the combination of all lanes of rows[t], for each k."""

    def mix(a: Value, b: Value, lanes: list[int]) -> Value:
        return e.b.shuffle_vector(a, b, ir.Constant(em.I32X16, lanes))

    def fold(a: Value, b: Value) -> Value:
        """Quarters of a pair: lanes 0..7 hold a's halves combined, 8..15 b's."""
        low = [*range(0, 8), *range(16, 24)]
        return combine(mix(a, b, low), mix(a, b, [i + 8 for i in low]))

    one, two = fold(rows[0], rows[1]), fold(rows[2], rows[3])
    # one: 8 lanes of row 0, 8 of row 1. Halving again gives 4 lanes a row, then 2, then 1.
    low = [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]
    four = combine(mix(one, two, low), mix(one, two, [i + 4 for i in low]))
    pairs = combine(four, mix(four, four, [i ^ 2 for i in range(16)]))
    single = combine(pairs, mix(pairs, pairs, [i ^ 1 for i in range(16)]))
    return mix(single, single, [4 * (i % 4) for i in range(16)])


def _lane(e: em.Emitter, vector: Value, lane: int) -> Value:
    return e.b.shuffle_vector(vector, vector, ir.Constant(em.I32X16, [lane] * 16))


def _load4(e: em.Emitter, address: Value) -> Value:
    """Four float32 in every four lanes."""
    four = e.load(ir.VectorType(em.F32, 4), address)
    return e.b.shuffle_vector(four, four, ir.Constant(em.I32X16, [i % 4 for i in range(16)]))


def _store4(e: em.Emitter, vector: Value, address: Value) -> None:
    e.store(e.b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(em.I32, 4), list(range(4)))), address)


def _masks(e: em.Emitter, limits: Value) -> list[tuple[Value, Value]]:
    """For each query, which of the first and of the last 16 cells it sees: int64 low, high pairs at `limits`."""
    masks = []
    for t in range(4):
        low, high = (e.splat(e.b.trunc(e.load(em.I64, limits, 16 * t + 8 * k), em.I32)) for k in (0, 1))
        halves = [ir.Constant(em.I32X16, list(range(k, k + 16))) for k in (0, 16)]
        inside = [e.b.and_(e.b.icmp_signed(">=", h, low), e.b.icmp_signed("<", h, high)) for h in halves]
        masks.append((inside[0], inside[1]))
    return masks


def _masked(e: em.Emitter, values: list[Value], masks: list[tuple[Value, Value]] | None, other: float) -> list[Value]:
    if masks is None:
        return values
    flat = [mask for pair in masks for mask in pair]
    return [e.b.select(m, v, e.const(em.F32X16, other)) for m, v in zip(flat, values, strict=True)]


def _emit(e: em.Emitter, scores: Value, maxima: Value, sums: Value, factors: Value, limits: Value | None) -> Value:
    """See softmax_whole; with `limits` each query sees only its cells."""
    b = e.b
    masks = None if limits is None else _masks(e, limits)
    s = _masked(e, [e.load(em.F32X16, scores, 64 * i) for i in range(8)], masks, _NEG_INF)
    before = _load4(e, maxima)
    tile = _across(e, [_largest(e, s[2 * t], s[2 * t + 1]) for t in range(4)], lambda x, y: _largest(e, x, y))
    after = _largest(e, before, tile)
    # A query that has seen nothing yet, and sees nothing here, keeps sum and output 0 whatever its factor.
    shift = b.select(b.fcmp_ordered("==", after, e.const(em.F32X16, _NEG_INF)), e.const(em.F32X16, 0.0), after)
    p = [emit_exp(e, b.fsub(s[i], _lane(e, shift, i // 2))) for i in range(8)]
    p = _masked(e, p, masks, 0.0)
    for i, weights in enumerate(p):
        e.store(weights, scores, 64 * i)
    factor = emit_exp(e, b.fsub(before, shift))
    added = _across(e, [b.fadd(p[2 * t], p[2 * t + 1]) for t in range(4)], b.fadd)
    _store4(e, e.fma(_load4(e, sums), factor, added), sums)
    _store4(e, after, maxima)
    _store4(e, factor, factors)
    changed = b.fcmp_unordered("!=", before, after)
    return b.zext(b.bitcast(changed, em.I16), em.I64)


@operation(i64, i64, i64, i64, i64)
def softmax_whole(e: em.Emitter, scores: Value, maxima: Value, sums: Value, factors: Value) -> Value:
    """Four queries that see the whole tile: scores[4][32] become weights relative to the new maxima.

    maxima, sums: float32 [4], updated; factors: float32 [4], by which earlier outputs shrink. Not 0 if any changed.
    """
    return _emit(e, scores, maxima, sums, factors, None)


@operation(i64, i64, i64, i64, i64, i64)
def softmax_part(e: em.Emitter, scores: Value, maxima: Value, sums: Value, factors: Value, limits: Value) -> Value:
    """As softmax_whole; query t sees the cells limits[t][0] <= i < limits[t][1] (int64 [4][2])."""
    return _emit(e, scores, maxima, sums, factors, limits)
