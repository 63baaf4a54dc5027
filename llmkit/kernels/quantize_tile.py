"""Quantising 32 columns of one or of eight tokens at once: maxima and sums of all tokens share their trees."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from llmkit.kernels.activation_tile import Q8_32_NEG_SUM, Q8_32_SCALE, Q8_32_SCALED_SUM
from llmkit.simd import emitter as em
from llmkit.simd.vector import f32x16, operation

Value = Any
i64, void = types.int64, types.void

# Added to a float32 below 2^22 in size it leaves the nearest integer, ties to even, in the low bits of the sum.
_ROUND = 12582912.0


def _magnitude(e: em.Emitter, x: Value) -> Value:
    """|x| as int32 bits: ordered as the floats are, NaN above all."""
    return e.b.and_(e.b.bitcast(x, em.I32X16), e.const(em.I32X16, 0x7FFFFFFF))


def _larger(e: em.Emitter, a: Value, b: Value) -> Value:
    return e.b.select(e.b.icmp_signed(">", a, b), a, b)


def _load32(e: em.Emitter, x: Value) -> tuple[Value, Value]:
    return e.load(em.F32X16, x), e.load(em.F32X16, x, 64)


def _largest32(e: em.Emitter, x: Value) -> Value:
    """Lane-wise larger magnitudes of 32 columns."""
    low, high = _load32(e, x)
    return _larger(e, _magnitude(e, low), _magnitude(e, high))


def _store_codes(e: em.Emitter, x: Value, inverse: Value, y: Value) -> tuple[Value, Value]:
    """Writes the 32 codes x * inverse, rounded; the codes of the first and of the second 16 columns as int32."""
    codes = []
    for i, values in enumerate(_load32(e, x)):
        rounded = e.b.fadd(e.b.fmul(values, inverse), e.const(em.F32X16, _ROUND))
        bits = e.b.bitcast(rounded, em.I32X16)
        e.store(e.b.trunc(bits, em.I8X16), y, 16 * i)
        codes.append(e.b.sub(bits, e.const(em.I32X16, 0x4B400000)))
    return codes[0], codes[1]


def _reduce(e: em.Emitter, rows: list[Value], combine: Any) -> Value:
    """16 lanes, of which lane t is the combination of all lanes of rows[t] (1 or 8 rows)."""
    if len(rows) == 1:
        rows = rows * 8
    while len(rows) > 1:
        rows = [_fold(e, a, b, combine) for a, b in zip(rows[0::2], rows[1::2], strict=True)]
    low = ir.Constant(em.I32X16, [0, 2, 4, 6, 8, 10, 12, 14] * 2)
    high = ir.Constant(em.I32X16, [1, 3, 5, 7, 9, 11, 13, 15] * 2)
    return combine(e.b.shuffle_vector(rows[0], rows[0], low), e.b.shuffle_vector(rows[0], rows[0], high))


def _fold(e: em.Emitter, a: Value, b: Value, combine: Any) -> Value:
    """Neighbouring lanes combined: 8 of a, then 8 of b."""
    even, odd = (ir.Constant(em.I32X16, list(range(start, 32, 2))) for start in (0, 1))
    return combine(e.b.shuffle_vector(a, b, even), e.b.shuffle_vector(a, b, odd))


def _scales(e: em.Emitter, magnitudes: Value) -> tuple[Value, Value]:
    """d = largest / 127 and its inverse; 0 for the inverse, and so for all codes, where it would overflow."""
    largest = e.b.bitcast(magnitudes, em.F32X16)
    limit, zero, tiny = (e.const(em.F32X16, value) for value in (127.0, 0.0, 2.0**-100))
    inverse = e.b.fdiv(limit, largest)
    return e.b.fdiv(largest, limit), e.b.select(e.b.fcmp_ordered("<", largest, tiny), zero, inverse)


def _lane(e: em.Emitter, vector: Value, lane: int) -> Value:
    """One lane in all lanes."""
    return e.b.shuffle_vector(vector, vector, ir.Constant(em.I32X16, [lane] * 16))


def _store_lanes(e: em.Emitter, values: Value, n: int, y: Value, n_bytes: int) -> None:
    """The first n lanes (1 or 8)."""
    if n == 1:
        e.store(e.b.extract_element(values, em.I32(0)), y, n_bytes)
    else:
        first = ir.Constant(ir.VectorType(em.I32, 8), list(range(8)))
        e.store(e.b.shuffle_vector(values, values, first), y, n_bytes)


def _emit_q8_32(e: em.Emitter, rows: list[Value], codes: list[Value], after: Value) -> None:
    """32 columns at each of `rows` into 32 bytes at each of `codes`; scales and sums relative to `after`."""
    n = len(rows)
    scale, inverse = _scales(e, _reduce(e, [_largest32(e, row) for row in rows], lambda a, b: _larger(e, a, b)))
    sums = []
    for t, row in enumerate(rows):
        low, high = _store_codes(e, row, _lane(e, inverse, t), codes[t])
        sums.append(e.b.add(low, high))
    total = _reduce(e, sums, e.b.add)
    _store_lanes(e, scale, n, after, Q8_32_SCALE)
    _store_lanes(e, e.b.neg(total), n, after, Q8_32_NEG_SUM)
    _store_lanes(e, e.b.fmul(scale, e.to_float(total)), n, after, Q8_32_SCALED_SUM)


@operation(void, i64, i64, i64)
def quantize_q8_32_1(e: em.Emitter, x: Value, codes: Value, after: Value) -> None:
    """32 columns at x of one token: codes to `codes`; scale and sums where lane 0's are in a block at `after`."""
    _emit_q8_32(e, [x], [codes], after)


@operation(void, i64, i64, i64)
def quantize_q8_32_8(e: em.Emitter, x: Value, stride: Value, y: Value) -> None:
    """32 columns at x of eight tokens, `stride` bytes apart, into a Q8_32 block at y."""
    rows = [e.b.add(x, e.b.mul(stride, em.I64(t))) for t in range(8)]
    _emit_q8_32(e, rows, [e.offset(y, 32 * t) for t in range(8)], y)


@operation(f32x16, i64)
def magnitudes_32(e: em.Emitter, x: Value) -> Value:
    """Lane-wise larger magnitudes of 32 columns (as float32; NaN is above all)."""
    return e.b.bitcast(_largest32(e, x), em.F32X16)


@operation(f32x16, f32x16, f32x16)
def larger_magnitudes(e: em.Emitter, a: Value, b: Value) -> Value:
    a, b = e.b.bitcast(a, em.I32X16), e.b.bitcast(b, em.I32X16)
    return e.b.bitcast(_larger(e, a, b), em.F32X16)


@operation(void, f32x16, i64, i64)
def store_scales(e: em.Emitter, magnitudes: Value, scale_at: Value, inverse_at: Value) -> None:
    """From lane-wise magnitudes of one token's block: d to scale_at, its inverse to inverse_at (one float32 each)."""
    combined = _reduce(e, [e.b.bitcast(magnitudes, em.I32X16)], lambda a, b: _larger(e, a, b))
    scale, inverse = _scales(e, combined)
    _store_lanes(e, scale, 1, scale_at, 0)
    _store_lanes(e, inverse, 1, inverse_at, 0)


@operation(void, i64, i64, i64, i64, i64)
def store_part_256(e: em.Emitter, x: Value, inverse_at: Value, y: Value, neg_sums: Value, total_at: Value) -> None:
    """32 columns of one token: codes to y; minus the sums of 16 to neg_sums and 32 bytes on; their sum to total_at."""
    low, high = _store_codes(e, x, e.load_splat(em.F32, inverse_at), y)
    sums = [e.sum_int(low), e.sum_int(high)]
    for i, total in enumerate(sums):
        e.store(e.b.neg(total), neg_sums, 32 * i)
    e.store(e.b.sitofp(e.b.add(*sums), em.F32), total_at)
