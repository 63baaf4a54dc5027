"""What the machine can do at best, for kernels to be measured against: reading memory, and dot products in registers.

The loops hold as many independent sums as the instruction set has registers for, and load one new vector in each round,
since a compiler would otherwise compute the round once and multiply. Knows nothing of clocks and threads: those are
llmkit.bench.machine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from llmkit.kernels.jit import entry
from llmkit.simd import emitter as em
from llmkit.simd.loop import emit_loop
from llmkit.simd.vector import operation

Value = Any
i64 = types.int64

READ_BYTES = 1024  # of one round of `read_memory`
TABLE_BYTES = 2048  # that the peak loops read: 8 vectors that change, 16 that stay
_CHANGING, _STAYING = 8, 512  # vectors; offset in the table
MAC_OPS = 2  # a multiplication and an addition


def _n_sums(e: em.Emitter) -> int:
    """Sums that fit into registers beside their operands: 12 of 32 zmm, 6 (of two halves each) of 16 ymm."""
    return 12 if e.n_tokens_wide == 8 else 6


def _emit_peak(
    e: em.Emitter, table: Value, n: Value, kind: ir.Type, zero: Value, step: Callable[[Value, Value, Value], Value]
) -> list[Value]:
    """`sum[k] = step(sum[k], changing, staying[k])` for all k, `n` times."""
    staying = [e.load(kind, table, _STAYING + 64 * k) for k in range(_n_sums(e))]

    def body(i: Value, sums: list[Value]) -> list[Value]:
        place = e.b.mul(e.b.and_(i, em.I64(_CHANGING - 1)), em.I64(64))
        changing = e.load(kind, e.b.add(table, place))
        return [step(total, changing, own) for total, own in zip(sums, staying, strict=True)]

    return emit_loop(e.b, n, [zero] * len(staying), body)


@operation(i64, i64, i64)
def _int8_peak(e: em.Emitter, table: Value, n: Value) -> Value:
    def step(total: Value, changing: Value, own: Value) -> Value:
        return e.dot_bytes(total, changing, own, small=True)

    total = e.const(em.I32X16, 0)
    for part in _emit_peak(e, table, n, em.I8X64, total, step):
        total = e.b.xor(total, part)
    return e.b.sext(e.sum_int(total), em.I64)


@operation(types.float32, i64, i64)
def _fma_peak(e: em.Emitter, table: Value, n: Value) -> Value:
    zero = total = e.const(em.F32X16, 0.0)
    for part in _emit_peak(e, table, n, em.F32X16, zero, lambda total, changing, own: e.fma(changing, own, total)):
        total = e.b.fadd(total, part)
    return e.sum(total)


@operation(i64, i64, i64)
def _read(e: em.Emitter, address: Value, n: Value) -> Value:
    def body(i: Value, sums: list[Value]) -> list[Value]:
        place = e.b.add(address, e.b.mul(i, em.I64(READ_BYTES)))
        for offset in range(0, READ_BYTES, 64):
            k = offset // 64 % len(sums)
            sums[k] = e.b.or_(sums[k], e.load(em.I32X16, place, offset))
        return sums

    sums = emit_loop(e.b, n, [e.const(em.I32X16, 0)] * 4, body)
    return e.b.sext(e.sum_int(e.b.or_(e.b.or_(sums[0], sums[1]), e.b.or_(sums[2], sums[3]))), em.I64)


@operation(i64, i64)
def _sums(e: em.Emitter, _unused: Value) -> Value:
    return em.I64(_n_sums(e))


@entry(i64(i64))
def n_sums(unused):
    """How many vectors of 64 bytes a round of the peak loops multiplies."""
    return _sums(unused)


@entry(i64(i64, i64))
def int8_peak(table, n):
    """`n` >= 1 rounds of n_sums dot products of 64 bytes each; `table` holds bytes below 128. The sum means nothing."""
    return _int8_peak(table, n)


@entry(types.float32(i64, i64))
def fma_peak(table, n):
    """`n` >= 1 rounds of n_sums multiply-adds of 16 float32 each."""
    return _fma_peak(table, n)


@entry(i64(i64, i64))
def read_memory(address, n):
    """Reads `n` >= 1 runs of READ_BYTES bytes; all their bits, or-ed and summed."""
    return _read(address, n)
