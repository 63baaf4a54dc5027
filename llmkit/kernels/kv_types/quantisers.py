"""ggml's reference quantisers of 32 values, as two vectors of 16. Source: llama.cpp, ggml-quants (quantize_row_*_ref).

Each gives d (and m) as float32, which are then rounded to float16, and int32 codes made with what was not yet rounded.
A NaN among the values makes d NaN, so that it stays visible.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from llmkit.kernels.kv_types.quantised import CellFormat
from llmkit.simd import emitter as em

Value = Any
Pair = tuple[Value, Value]
_SMALLEST = 1e-15  # what ggml takes for zero (GROUP_MAX_EPS)


def quantise(e: em.Emitter, fmt: CellFormat, source: Value) -> tuple[Value, Value | None, Pair]:
    """d, m (or None) as scalars, and the codes of 32 float32 at `source`."""
    x = (e.load(em.F32X16, source), e.load(em.F32X16, source, 64))
    if fmt.n_bits == 8:
        return _q8(e, x)
    if fmt.has_min:
        return _with_min(e, fmt, x)
    return _table(e, fmt, x, source) if fmt.values else _symmetric(e, fmt, x, source)


def _scalar(value: float) -> Value:
    return ir.Constant(em.F32, value)


def _inverse(e: em.Emitter, d: Value) -> Value:
    """1 / d, 0 for 0."""
    zero = _scalar(0.0)
    return e.b.select(e.b.fcmp_ordered("==", d, zero), zero, e.b.fdiv(_scalar(1.0), d))


def _largest_magnitude(e: em.Emitter, x: Pair) -> Value:
    return e.largest(e.maximum(e.absolute(x[0]), e.absolute(x[1])))


def _first_largest(e: em.Emitter, x: Pair, source: Value) -> Value:
    """The first value whose magnitude is the largest; the last value if there is a NaN, or that NaN."""
    b, largest = e.b, _largest_magnitude(e, x)
    masks = [b.bitcast(b.fcmp_ordered("==", e.absolute(half), e.splat(largest)), em.I16) for half in x]
    both = b.or_(b.zext(masks[0], em.I32), b.shl(b.zext(masks[1], em.I32), em.I32(16)))
    index = e.intrinsic("llvm.cttz.i32", em.I32, [b.or_(both, ir.Constant(em.I32, -(1 << 31))), em.I1(1)])
    value = e.load(em.F32, b.add(source, b.mul(b.zext(index, em.I64), em.I64(4))))
    return b.select(b.fcmp_unordered("uno", largest, largest), largest, value)


def _at_most(e: em.Emitter, code: Value, limit: int) -> Value:
    most = e.const(em.I32X16, limit)
    return e.b.select(e.b.icmp_signed("<", code, most), code, most)


def _symmetric(e: em.Emitter, fmt: CellFormat, x: Pair, source: Value) -> tuple[Value, None, Pair]:
    """d (q - zero): the value of largest magnitude becomes code 0."""
    d = e.b.fdiv(_first_largest(e, x, source), _scalar(-float(fmt.zero)))
    inverse, shift = e.splat(_inverse(e, d)), e.const(em.F32X16, fmt.zero + 0.5)
    low, high = (_at_most(e, e.truncate_to_int(e.fma(half, inverse, shift)), 2 * fmt.zero - 1) for half in x)
    return d, None, (low, high)


def _with_min(e: em.Emitter, fmt: CellFormat, x: Pair) -> tuple[Value, Value, Pair]:
    """d q + m: m is the smallest value, the largest gets the last code."""
    last, b = 2 * fmt.zero - 1, e.b
    m = b.fneg(e.largest(e.maximum(b.fneg(x[0]), b.fneg(x[1]))))
    d = b.fdiv(b.fsub(e.largest(e.maximum(*x)), m), _scalar(float(last)))
    inverse, least, half = e.splat(_inverse(e, d)), e.splat(m), e.const(em.F32X16, 0.5)
    codes = [e.truncate_to_int(e.fma(b.fsub(part, least), inverse, half)) for part in x]
    return d, m, (_at_most(e, codes[0], last), _at_most(e, codes[1], last))


def _q8(e: em.Emitter, x: Pair) -> tuple[Value, None, Pair]:
    """d q: rounded to the nearest, halves away from zero."""
    d = e.b.fdiv(_largest_magnitude(e, x), _scalar(127.0))
    inverse = e.splat(_inverse(e, d))
    low, high = (e.truncate_to_int(_plus_half(e, e.b.fmul(part, inverse))) for part in x)
    return d, None, (low, high)


def _plus_half(e: em.Emitter, x: Value) -> Value:
    """x and the largest float32 below a half, with the sign of x: what then is truncated is rounded as C's roundf."""
    half = e.const(em.F32X16, 0.49999997)
    return e.b.fadd(x, e.intrinsic("llvm.copysign.v16f32", em.F32X16, [half, x]))


def _table(e: em.Emitter, fmt: CellFormat, x: Pair, source: Value) -> tuple[Value, None, Pair]:
    """d values[q]: the nearest entries for a first d, then the d that fits best, weighed by the values' squares."""
    b, first = e.b, _first_largest(e, x, source)
    inverse = e.splat(b.fdiv(_scalar(1.0), b.fdiv(first, _scalar(float(fmt.values[0])))))
    found = [_nearest(e, fmt.values, b.fmul(part, inverse)) for part in x]
    products, squares = list[Value](), list[Value]()
    for part, (_, entry) in zip(x, found, strict=True):
        weighted = b.fmul(b.fmul(part, part), entry)
        products.append(b.fmul(weighted, part))
        squares.append(b.fmul(weighted, entry))
    d = b.fdiv(_in_order(e, products), _in_order(e, squares))
    tiny = b.fcmp_ordered("<", _largest_magnitude(e, x), _scalar(_SMALLEST))
    return b.select(tiny, _scalar(0.0), d), None, (found[0][0], found[1][0])


def _nearest(e: em.Emitter, values: tuple[int, ...], x: Value) -> tuple[Value, Value]:
    """The code of the nearest entry, the upper of two equally near, and the entry as float32."""
    b, code, entry = e.b, e.const(em.I32X16, 0), e.const(em.F32X16, float(values[0]))
    for i in range(15):
        lower, upper = (e.const(em.F32X16, float(values[j])) for j in (i, i + 1))
        above = b.fcmp_unordered(">=", b.fsub(x, lower), b.fsub(upper, x))
        code = b.select(above, e.const(em.I32X16, i + 1), code)
        entry = b.select(above, upper, entry)
    return code, entry


def _in_order(e: em.Emitter, parts: list[Value]) -> Value:
    """The sum of all lanes, one after the other."""
    total = _scalar(0.0)
    for part in parts:
        for lane in range(16):
            total = e.b.fadd(total, e.b.extract_element(part, em.I32(lane)))
    return total
