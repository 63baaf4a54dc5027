"""Tables of 16 numbers in a register, and what a search over lanes needs: the least lane, the first lane of a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from llmkit.simd import emitter as em
from llmkit.simd.lanes import m16
from llmkit.simd.vector import f32x16, i32x16, operation

i32, i64, f32 = types.int32, types.int64, types.float32
Value = Any


def table_f32(values: Sequence[float]) -> Any:
    """An operation without arguments: the vector of `values`, repeated until there are 16."""

    @operation(f32x16)
    def table(_e: em.Emitter) -> Value:
        return ir.Constant(em.F32X16, [float(values[i % len(values)]) for i in range(16)])

    return table


def table_i32(values: Sequence[int]) -> Any:
    """As table_f32, of int32."""

    @operation(i32x16)
    def table(_e: em.Emitter) -> Value:
        return ir.Constant(em.I32X16, [int(values[i % len(values)]) for i in range(16)])

    return table


@operation(f32x16, f32x16, i32x16)
def lookup(e: em.Emitter, table: Value, index: Value) -> Value:
    """Lane index & 15 of `table` in each lane."""
    return e.lookup_f32(table, index)


@operation(i32, m16)
def mask_bits(e: em.Emitter, mask: Value) -> Value:
    """Lane i of the mask as bit i."""
    return e.b.zext(e.b.bitcast(mask, ir.IntType(16)), em.I32)


@operation(i32, m16)
def first_lane(e: em.Emitter, mask: Value) -> Value:
    """The first lane that is set; 16 where none is."""
    bits = e.b.bitcast(mask, ir.IntType(16))
    return e.b.zext(e.b.cttz(bits, em.I1(0)), em.I32)


@operation(m16, i32)
def lanes_after(e: em.Emitter, lane: Value) -> Value:
    """The lanes behind lane `lane`."""
    return e.b.icmp_signed(">", ir.Constant(em.I32X16, list(range(16))), e.splat(lane))


@operation(m16, i32)
def lanes_before(e: em.Emitter, lane: Value) -> Value:
    """The lanes in front of lane `lane`."""
    return e.b.icmp_signed("<", ir.Constant(em.I32X16, list(range(16))), e.splat(lane))


@operation(f32, f32x16, i32)
def lane_f32(e: em.Emitter, a: Value, lane: Value) -> Value:
    """One lane, 0..15."""
    return e.b.extract_element(a, lane)


@operation(i32, i32x16, i32)
def lane_i32(e: em.Emitter, a: Value, lane: Value) -> Value:
    """One lane, 0..15."""
    return e.b.extract_element(a, lane)


@operation(f32, f32x16)
def hmin(e: em.Emitter, a: Value) -> Value:
    """The smallest lane of numbers (no NaN)."""
    while a.type.count > 2:
        low, high = e._halves(a)
        a = e.b.select(e.b.fcmp_ordered("<", low, high), low, high)
    low, high = (e.b.extract_element(a, em.I32(i)) for i in (0, 1))
    return e.b.select(e.b.fcmp_ordered("<", low, high), low, high)


@operation(i32x16, i32x16, i32x16)
def least_i32(e: em.Emitter, a: Value, b: Value) -> Value:
    """The smaller of two, lane by lane."""
    return e.b.select(e.b.icmp_signed("<", a, b), a, b)


@operation(i32, i32x16)
def hmin_i32(e: em.Emitter, a: Value) -> Value:
    """The smallest lane."""
    return e.intrinsic("llvm.vector.reduce.smin.v16i32", em.I32, [a])


@operation(i32, f32)
def nearest_int1(e: em.Emitter, a: Value) -> Value:
    """lanes.nearest_int of one number."""
    bits = e.b.bitcast(e.b.fadd(a, em.F32(12582912.0)), em.I32)
    return e.b.sub(e.b.and_(bits, em.I32(0x007FFFFF)), em.I32(0x00400000))
