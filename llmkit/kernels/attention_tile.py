"""The two products of attention on one tile of 32 cells, for four queries at once or for one.

K of a tile is float32 [dim][32 cells], V is [32 cells][v_dim]: scores have cells as lanes, outputs have dimensions.
Each score adds up over dimensions in order, each output over cells in order, whatever the number of queries.
"""

from __future__ import annotations

from typing import Any

from numba import types

from llmkit.simd import emitter as em
from llmkit.simd.loop import emit_loop
from llmkit.simd.vector import operation

Value = Any
i64, void = types.int64, types.void
N_QUERIES = 4


@operation(void, i64, i64, i64, i64)
def score_tile(e: em.Emitter, q: Value, k: Value, head_dim: Value, scores: Value) -> None:
    """scores[4][32] = q . k; q: float32 [head_dim][4], k: float32 [head_dim][32]."""

    def body(d: Value, acc: list[Value]) -> list[Value]:
        row = e.b.add(k, e.b.mul(d, em.I64(128)))
        low, high = e.load(em.F32X16, row), e.load(em.F32X16, row, 64)
        at = e.b.add(q, e.b.mul(d, em.I64(4 * N_QUERIES)))
        out = []
        for i in range(N_QUERIES):
            value = e.load_splat(em.F32, at, 4 * i)
            out += [e.fma(value, low, acc[2 * i]), e.fma(value, high, acc[2 * i + 1])]
        return out

    sums = emit_loop(e.b, head_dim, [e.const(em.F32X16, 0.0)] * (2 * N_QUERIES), body)
    for i, total in enumerate(sums):
        e.store(total, scores, 64 * i)


def _emit_weighted(e: em.Emitter, p: Value, v: Value, step: Value, out: list[Value], n: Value, width: int) -> None:
    """out[q][16 * width dims] += sum over n cells of p[q] * v; p: the first weight of query 0, 128 bytes a query."""

    def body(t: Value, acc: list[Value]) -> list[Value]:
        row = e.b.add(v, e.b.mul(t, step))
        columns = [e.load(em.F32X16, row, 64 * i) for i in range(width)]
        at = e.b.add(p, e.b.mul(t, em.I64(4)))
        sums = []
        for i in range(len(out)):
            weight = e.load_splat(em.F32, at, 128 * i)
            sums += [e.fma(weight, column, acc[width * i + j]) for j, column in enumerate(columns)]
        return sums

    start = [e.load(em.F32X16, address, 64 * j) for address in out for j in range(width)]
    for i, total in enumerate(emit_loop(e.b, n, start, body)):
        e.store(total, out[i // width], 64 * (i % width))


def _emit_values(e: em.Emitter, n_queries: int, p: Value, v: Value, v_dim: Value, out: Value, n: Value) -> None:
    """All dimensions: 64 at a time while they last, then 16 at a time."""
    step = e.b.mul(v_dim, em.I64(4))

    def columns(width: int, first: Value) -> None:
        offset = e.b.mul(first, em.I64(4))
        rows = [e.b.add(e.b.add(out, offset), e.b.mul(step, em.I64(i))) for i in range(n_queries)]
        _emit_weighted(e, p, e.b.add(v, offset), step, rows, n, width)

    def repeat(width: int, start: Value, count: Value) -> None:
        with e.b.if_then(e.b.icmp_signed(">", count, em.I64(0))):

            def body(i: Value, _state: list[Value]) -> list[Value]:
                columns(width, e.b.add(start, e.b.mul(i, em.I64(16 * width))))
                return []

            emit_loop(e.b, count, [], body)

    whole = e.b.sdiv(v_dim, em.I64(64))
    repeat(4, em.I64(0), whole)
    done = e.b.mul(whole, em.I64(64))
    repeat(1, done, e.b.sdiv(e.b.sub(v_dim, done), em.I64(16)))


@operation(void, i64, i64, i64, i64)
def add_values_4(e: em.Emitter, p: Value, v: Value, v_dim: Value, out: Value) -> None:
    """out[4][v_dim] += p[4][32] v[32][v_dim], for four queries that see the whole tile."""
    _emit_values(e, N_QUERIES, p, v, v_dim, out, em.I64(32))


@operation(void, i64, i64, i64, i64, i64)
def add_values_1(e: em.Emitter, p: Value, v: Value, v_dim: Value, out: Value, n: Value) -> None:
    """out[v_dim] += p[n] v[n][v_dim], for one query; n >= 1."""
    _emit_values(e, 1, p, v, v_dim, out, n)
