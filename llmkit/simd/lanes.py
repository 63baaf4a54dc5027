"""Arithmetic on vectors with Python's operators, choices between lanes, and the ways of rounding that quantizers need.

`+ - * /` of two f32x16 (or `+ - * & | ^ << >>` of two i32x16) are one IEEE (or wrapping integer) operation a lane;
comparisons give a mask of 16 bits, which `&`, `|` and `~` combine and `where` reads. Nothing is reordered or fused.
A file that uses the operators imports this module. i32x16 `>>` is a logical shift.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

from llmkit.simd import emitter as em
from llmkit.simd.vector import VectorType, f32x16, i32x16, operation

Value = Any
i32, i64, f32, void = types.int32, types.int64, types.float32, types.void

m16 = VectorType("m16", ir.VectorType(em.I1, 16))


def _operator(function: Any, cases: list[tuple[VectorType, VectorType, Callable[[Any, Value, Value], Value]]]) -> None:
    """Gives a Python operator a meaning for two equal vector types: (argument, result, code)."""
    known = [signature(result, kind, kind) for kind, result, _ in cases]
    infer_global(function)(type(f"_Vector_{function.__name__}", (ConcreteTemplate,), {"cases": known}))
    for kind, _result, emit in cases:

        def lowered(_context: Any, builder: Any, _signature: Any, args: Any, emit: Any = emit) -> Any:
            return emit(builder, *args)

        lower_builtin(function, kind, kind)(lowered)


for _add, _sub, _mul in ((operator.add, operator.sub, operator.mul), (operator.iadd, operator.isub, operator.imul)):
    _operator(_add, [(f32x16, f32x16, lambda b, x, y: b.fadd(x, y)), (i32x16, i32x16, lambda b, x, y: b.add(x, y))])
    _operator(_sub, [(f32x16, f32x16, lambda b, x, y: b.fsub(x, y)), (i32x16, i32x16, lambda b, x, y: b.sub(x, y))])
    _operator(_mul, [(f32x16, f32x16, lambda b, x, y: b.fmul(x, y)), (i32x16, i32x16, lambda b, x, y: b.mul(x, y))])
for _and, _or in ((operator.and_, operator.or_), (operator.iand, operator.ior)):
    _operator(_and, [(kind, kind, lambda b, x, y: b.and_(x, y)) for kind in (i32x16, m16)])
    _operator(_or, [(kind, kind, lambda b, x, y: b.or_(x, y)) for kind in (i32x16, m16)])
_operator(operator.truediv, [(f32x16, f32x16, lambda b, x, y: b.fdiv(x, y))])
_operator(operator.xor, [(i32x16, i32x16, lambda b, x, y: b.xor(x, y))])
_operator(operator.lshift, [(i32x16, i32x16, lambda b, x, y: b.shl(x, y))])
_operator(operator.rshift, [(i32x16, i32x16, lambda b, x, y: b.lshr(x, y))])


def _comparison(function: Any, sign: str) -> None:
    def floats(b: Any, x: Value, y: Value) -> Value:
        return b.fcmp_unordered(sign, x, y) if sign == "!=" else b.fcmp_ordered(sign, x, y)

    _operator(function, [(f32x16, m16, floats), (i32x16, m16, lambda b, x, y: b.icmp_signed(sign, x, y))])


_comparison(operator.lt, "<")
_comparison(operator.le, "<=")
_comparison(operator.gt, ">")
_comparison(operator.ge, ">=")
_comparison(operator.eq, "==")
_comparison(operator.ne, "!=")


# -- unary operators --------------------------------------------------------------------------------------------------


@infer_global(operator.neg)
class _Negative(ConcreteTemplate):  # type: ignore[misc, unused-ignore]
    cases = [signature(f32x16, f32x16)]  # noqa: RUF012


@infer_global(operator.invert)
class _Invert(ConcreteTemplate):  # type: ignore[misc, unused-ignore]
    cases = [signature(m16, m16)]  # noqa: RUF012


@lower_builtin(operator.neg, f32x16)
def _negative(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    return builder.fneg(*args)


@lower_builtin(operator.invert, m16)
def _invert(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    return builder.not_(*args)


# -- choices ----------------------------------------------------------------------------------------------------------


@intrinsic
def where(typingctx: Any, mask: Any, yes: Any, no: Any) -> Any:
    """`yes` in lanes where the mask is set, `no` elsewhere; two vectors of one type."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.select(*args)

    return yes(m16, yes, yes), codegen


@operation(types.boolean, m16)
def any_lane(e: em.Emitter, mask: Value) -> Value:
    bits = e.b.bitcast(mask, ir.IntType(16))
    return e.b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


@operation(i32, m16)
def mask_bits(e: em.Emitter, mask: Value) -> Value:
    """Bit i is lane i."""
    return e.b.zext(e.b.bitcast(mask, ir.IntType(16)), em.I32)


@operation(f32x16, f32x16)
def absolute(e: em.Emitter, a: Value) -> Value:
    return e.absolute(a)


@operation(f32x16, f32x16, f32x16)
def larger(e: em.Emitter, a: Value, b: Value) -> Value:
    """C's `a > b ? a : b`: b where either is NaN."""
    return e.b.select(e.b.fcmp_ordered(">", a, b), a, b)


@operation(f32x16, f32x16, f32x16)
def smaller(e: em.Emitter, a: Value, b: Value) -> Value:
    """C's `a < b ? a : b`."""
    return e.b.select(e.b.fcmp_ordered("<", a, b), a, b)


@operation(i32x16, i32x16, i32, i32)
def clamp(e: em.Emitter, a: Value, low: Value, high: Value) -> Value:
    """low where a is below it, high where a is above it."""
    for sign, limit in ((">", low), ("<", high)):
        bound = e.splat(limit)
        a = e.b.select(e.b.icmp_signed(sign, a, bound), a, bound)
    return a


@operation(i32x16, i32x16, i32)
def at_most(e: em.Emitter, a: Value, high: Value) -> Value:
    bound = e.splat(high)
    return e.b.select(e.b.icmp_signed("<", a, bound), a, bound)


# -- numbers ----------------------------------------------------------------------------------------------------------


@operation(i32x16, i32)
def splat_i32(e: em.Emitter, value: Value) -> Value:
    return e.splat(value)


@operation(f32x16, i32x16)
def to_f32(e: em.Emitter, a: Value) -> Value:
    """int32 as float32, nearest even."""
    return e.to_float(a)


@operation(f32x16, f32x16)
def round_away(e: em.Emitter, a: Value) -> Value:
    """To the nearest integer, halves away from zero: C's roundf."""
    return e.intrinsic("llvm.round.v16f32", em.F32X16, [a])


@operation(f32x16, f32x16)
def square_root(e: em.Emitter, a: Value) -> Value:
    """Rounded to nearest, as IEEE asks; NaN below zero."""
    return e.intrinsic("llvm.sqrt.v16f32", em.F32X16, [a])


@operation(i32x16, f32x16)
def truncate(e: em.Emitter, a: Value) -> Value:
    """C's cast to int as x86 does it: what int32 cannot hold (infinite and NaN too) becomes the smallest int32."""
    fits = e.b.fcmp_ordered("<", e.absolute(a), e.const(em.F32X16, 2.0**31))
    return e.b.select(fits, e.b.fptosi(a, em.I32X16), e.const(em.I32X16, -(2**31)))


@operation(i32x16, f32x16)
def nearest_int(e: em.Emitter, a: Value) -> Value:
    """To the nearest int32, ties to even, by ggml's way: 1.5 * 2^23 is added and 23 bits of the sum are the result.

    Beyond 2^22 in size it gives what those bits happen to be, as there.
    """
    bits = e.b.bitcast(e.b.fadd(a, e.const(em.F32X16, 12582912.0)), em.I32X16)
    return e.b.sub(e.b.and_(bits, e.const(em.I32X16, 0x007FFFFF)), e.const(em.I32X16, 0x00400000))


@operation(i32, f32)
def nearest_int1(e: em.Emitter, a: Value) -> Value:
    """nearest_int of one number."""
    bits = e.b.bitcast(e.b.fadd(a, e.const(em.F32, 12582912.0)), em.I32)
    return e.b.sub(e.b.and_(bits, e.const(em.I32, 0x007FFFFF)), e.const(em.I32, 0x00400000))


# -- memory -----------------------------------------------------------------------------------------------------------


@operation(void, i64, i32x16)
def store_low_bytes(e: em.Emitter, address: Value, a: Value) -> None:
    """The low byte of each lane: 16 bytes."""
    e.store(e.b.trunc(a, em.I8X16), address)


@operation(i32x16, i64)
def load_bytes(e: em.Emitter, address: Value) -> Value:
    """16 bytes, unsigned."""
    return e.b.zext(e.load(em.I8X16, address), em.I32X16)


@operation(void, i64, i32x16)
def vstore_i32(e: em.Emitter, address: Value, a: Value) -> None:
    e.store(a, address)


@operation(i32x16, i64)
def vload_i32(e: em.Emitter, address: Value) -> Value:
    return e.load(em.I32X16, address)


def scratch(n_bytes: int) -> Any:
    """An operation without arguments: the address of so many bytes of the stack, on 64, the same at every call."""

    @operation(i64)
    def address(e: em.Emitter) -> Value:
        with e.b.goto_entry_block():
            place = e.b.alloca(ir.ArrayType(em.I8, n_bytes))
            place.align = 64
            return e.b.ptrtoint(place, em.I64)

    return address
