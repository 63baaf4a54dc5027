"""Vector and memory operations that Numba kernels call. Addresses are int64 byte addresses."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from llmkit.simd import emitter as em
from llmkit.simd.vector import Emitter, f32x16, i32x16, operation

i32, i64, f32, f64, void = types.int32, types.int64, types.float32, types.float64, types.void
Value = Any


# -- scalars in memory --------------------------------------------------------------------------------------------


def _loader(kind: ir.Type, extend: Any = None) -> Any:
    def load(e: em.Emitter, address: Value) -> Value:
        value = e.load(kind, address)
        return value if extend is None else extend(e, value)

    return load


load_i64 = operation(i64, i64)(_loader(em.I64))
load_i32 = operation(i32, i64)(_loader(em.I32))
load_f32 = operation(f32, i64)(_loader(em.F32))
load_f64 = operation(f64, i64)(_loader(em.F64))
load_u8 = operation(i32, i64)(_loader(em.I8, lambda e, v: e.b.zext(v, em.I32)))
load_i8 = operation(i32, i64)(_loader(em.I8, lambda e, v: e.b.sext(v, em.I32)))
load_u32 = operation(i64, i64)(_loader(em.I32, lambda e, v: e.b.zext(v, em.I64)))
load_u16 = operation(i32, i64)(_loader(em.I16, lambda e, v: e.b.zext(v, em.I32)))


@operation(void, i64, i64)
def store_i64(e: em.Emitter, address: Value, value: Value) -> None:
    e.store(value, address)


@operation(void, i64, i32)
def store_i32(e: em.Emitter, address: Value, value: Value) -> None:
    e.store(value, address)


@operation(void, i64, f32)
def store_f32(e: em.Emitter, address: Value, value: Value) -> None:
    e.store(value, address)


@operation(void, i64, f64)
def store_f64(e: em.Emitter, address: Value, value: Value) -> None:
    e.store(value, address)


@operation(void, i64, i32)
def store_u8(e: em.Emitter, address: Value, value: Value) -> None:
    e.store(e.b.trunc(value, em.I8), address)


@operation(void, i64, i32)
def store_u16(e: em.Emitter, address: Value, value: Value) -> None:
    e.store(e.b.trunc(value, em.I16), address)


@operation(void, i64, i64, i64)
def copy_bytes(e: em.Emitter, target: Value, source: Value, n_bytes: Value) -> None:
    pointer = em.I8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, em.I64, em.I1])
    name = "llvm.memcpy.p0.p0.i64"
    function = e.b.module.globals.get(name) or ir.Function(e.b.module, kind, name)
    e.b.call(function, [e.b.inttoptr(target, pointer), e.b.inttoptr(source, pointer), n_bytes, em.I1(0)])


@operation(f32, i32)
def f16_bits_to_f32(e: em.Emitter, bits: Value) -> Value:
    """One half-precision pattern (its low 16 bits) as float32."""
    wide = e.f16_to_f32(e.splat(e.b.trunc(bits, em.I16)))
    return e.b.extract_element(wide, em.I32(0))


@operation(i32, f32)
def f32_to_f16_bits(e: em.Emitter, value: Value) -> Value:
    """float32 to the half-precision pattern, nearest even."""
    return e.b.zext(e.b.extract_element(e.f32_to_f16(e.splat(value)), em.I32(0)), em.I32)


@operation(i32, f32)
def f32_to_bf16_bits(e: em.Emitter, value: Value) -> Value:
    """float32 to the bfloat16 pattern, nearest even."""
    return e.b.zext(e.b.extract_element(e.f32_to_bf16(e.splat(value)), em.I32(0)), em.I32)


@operation(f32, i32)
def bits_to_f32(e: em.Emitter, bits: Value) -> Value:
    return e.b.bitcast(bits, em.F32)


@operation(i32, f32)
def f32_bits(e: em.Emitter, value: Value) -> Value:
    return e.b.bitcast(value, em.I32)


@operation(i64, f64)
def f64_bits(e: em.Emitter, value: Value) -> Value:
    return e.b.bitcast(value, em.I64)


# -- vectors in memory --------------------------------------------------------------------------------------------


@operation(f32x16, i64)
def vload(e: em.Emitter, address: Value) -> Value:
    """16 float32."""
    return e.load(em.F32X16, address)


@operation(f32x16, i64)
def vload_f16(e: em.Emitter, address: Value) -> Value:
    """16 half-precision values as float32."""
    return e.load_f16(address)


@operation(f32x16, i64)
def vload_bf16(e: em.Emitter, address: Value) -> Value:
    """16 bfloat16 values as float32."""
    return e.load_bf16(address)


@operation(f32x16, i64)
def vload_u16(e: em.Emitter, address: Value) -> Value:
    """16 unsigned 16-bit numbers as float32, exact."""
    return e.to_float(e.b.zext(e.load(em.I16X16, address), em.I32X16))


@operation(void, i64, f32x16)
def vstore(e: em.Emitter, address: Value, value: Value) -> None:
    e.store(value, address)


@operation(void, i64, f32x16)
def vstore_f16(e: em.Emitter, address: Value, value: Value) -> None:
    e.store(e.f32_to_f16(value), address)


@operation(void, i64, f32x16)
def vstore_bf16(e: em.Emitter, address: Value, value: Value) -> None:
    e.store(e.f32_to_bf16(value), address)


@operation(void, i64, i32x16)
def vstore_u16(e: em.Emitter, address: Value, value: Value) -> None:
    """The low 16 bits of each lane."""
    e.store(e.b.trunc(value, em.I16X16), address)


@operation(f32x16, i64)
def vload_splat(e: em.Emitter, address: Value) -> Value:
    """One float32 of memory in all lanes."""
    return e.load_splat(em.F32, address)


# -- lanes --------------------------------------------------------------------------------------------------------


@operation(f32x16, f32)
def splat(e: em.Emitter, value: Value) -> Value:
    return e.splat(value)


@operation(f32x16, f32x16, f32x16)
def add(e: em.Emitter, a: Value, b: Value) -> Value:
    return e.b.fadd(a, b)


@operation(f32x16, f32x16, f32x16)
def sub(e: em.Emitter, a: Value, b: Value) -> Value:
    return e.b.fsub(a, b)


@operation(f32x16, f32x16, f32x16)
def mul(e: em.Emitter, a: Value, b: Value) -> Value:
    return e.b.fmul(a, b)


@operation(f32x16, f32x16, f32x16)
def div(e: em.Emitter, a: Value, b: Value) -> Value:
    return e.b.fdiv(a, b)


@operation(f32x16, f32x16, f32x16, f32x16)
def fma(e: em.Emitter, a: Value, b: Value, c: Value) -> Value:
    """a * b + c, rounded once."""
    return e.fma(a, b, c)


@operation(f32, f32, f32, f32)
def fma1(e: em.Emitter, a: Value, b: Value, c: Value) -> Value:
    """a * b + c of scalars, rounded once."""
    return e.fma(a, b, c)


@operation(f64, f64, f64, f64)
def fma_f64(e: em.Emitter, a: Value, b: Value, c: Value) -> Value:
    """a * b + c of float64, rounded once."""
    return e.intrinsic("llvm.fma.f64", em.F64, [a, b, c])


@operation(f32x16, f32x16, f32x16)
def vmax(e: em.Emitter, a: Value, b: Value) -> Value:
    return e.maximum(a, b)


@operation(f32, f32x16)
def hsum(e: em.Emitter, a: Value) -> Value:
    """Sum of the lanes, a fixed tree."""
    return e.sum(a)


@operation(f32, f32x16)
def hmax(e: em.Emitter, a: Value) -> Value:
    return e.largest(a)


@operation(i32x16, f32x16)
def round_i32(e: em.Emitter, a: Value) -> Value:
    """To the nearest int32, ties to even; NaN gives 0."""
    return e.round_to_int(a)


@operation(f32x16, f32x16, i64, i64, f32)
def keep_lanes(e: em.Emitter, value: Value, low: Value, high: Value, other: Value) -> Value:
    """Lanes low <= i < high of `value`, `other` elsewhere (a choice, not arithmetic: NaN in a dropped lane is gone)."""
    lanes = ir.Constant(em.I32X16, list(range(16)))
    first, last = (e.splat(e.b.trunc(v, em.I32)) for v in (low, high))
    inside = e.b.and_(e.b.icmp_signed(">=", lanes, first), e.b.icmp_signed("<", lanes, last))
    return e.b.select(inside, value, e.splat(other))


@operation(f32x16, f32x16, i32, f32)
def keep_bits(e: em.Emitter, value: Value, bits: Value, other: Value) -> Value:
    """Lanes i of `value` where bit i of `bits` is set, `other` elsewhere (a choice, as in keep_lanes)."""
    lanes = ir.Constant(em.I32X16, [1 << i for i in range(16)])
    set_here = e.b.icmp_unsigned("!=", e.b.and_(e.splat(bits), lanes), e.const(em.I32X16, 0))
    return e.b.select(set_here, value, e.splat(other))


@operation(f32x16, f32x16, f32x16, f32)
def where_above(e: em.Emitter, value: Value, x: Value, limit: Value) -> Value:
    """`value` in lanes where x > limit, 0 elsewhere (a choice, as in keep_lanes)."""
    return e.b.select(e.b.fcmp_ordered(">", x, e.splat(limit)), value, e.const(em.F32X16, 0.0))


@operation(f32x16, f32x16)
def exp(e: em.Emitter, x: Value) -> Value:
    """e^x: x = n ln2 + r, a degree-6 polynomial in r (Cephes' expf coefficients), 2^n by exponent bits.

    Arguments are first limited to -87.3 .. 88.3, so that nothing over- or underflows; NaN stays. Error under 2 units
    in the last place.
    """
    return emit_exp(e, x)


def emit_exp(e: em.Emitter, x: Value) -> Value:
    """The code of `exp`."""
    b, const = e.b, lambda v: e.const(em.F32X16, v)
    low, high, rounder = const(-87.3), const(88.3), const(12582912.0)
    limited = b.select(b.fcmp_ordered("<", high, x), high, x)
    limited = b.select(b.fcmp_ordered(">", low, limited), low, limited)
    shifted = e.fma(limited, const(1.44269504088896341), rounder)  # the nearest integer in its low bits
    n = b.fsub(shifted, rounder)
    r = e.fma(n, const(-0.693359375), limited)
    r = e.fma(n, const(2.12194440e-4), r)
    p = const(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = e.fma(p, r, const(c))
    y = b.fadd(e.fma(p, b.fmul(r, r), r), const(1.0))
    exponent = b.shl(b.bitcast(shifted, em.I32X16), e.const(em.I32X16, 23))
    y = b.bitcast(b.add(b.bitcast(y, em.I32X16), exponent), em.F32X16)
    return b.select(b.fcmp_unordered("uno", x, x), x, y)


# -- threads ------------------------------------------------------------------------------------------------------


@operation(i64, i64, i64)
def fetch_add(e: em.Emitter, address: Value, value: Value) -> Value:
    """Atomically adds to an int64; the value before."""
    return e.b.atomic_rmw("add", e.b.inttoptr(address, em.I64.as_pointer()), value, "acq_rel")


@operation(i64, i64, i64)
def exchange(e: em.Emitter, address: Value, value: Value) -> Value:
    """Atomically stores an int64; the value before."""
    return e.b.atomic_rmw("xchg", e.b.inttoptr(address, em.I64.as_pointer()), value, "acq_rel")


@operation(i64, i64, i64, i64)
def compare_exchange(e: em.Emitter, address: Value, expected: Value, value: Value) -> Value:
    """Atomically stores an int64 where `expected` is; whether it was."""
    place = e.b.inttoptr(address, em.I64.as_pointer())
    return e.b.zext(e.b.extract_value(e.b.cmpxchg(place, expected, value, "acq_rel", "acquire"), 1), em.I64)


@operation(i64, i64)
def atomic_load(e: em.Emitter, address: Value) -> Value:
    return e.b.load_atomic(e.b.inttoptr(address, em.I64.as_pointer()), "acquire", 8)


@operation(void, i64, i64)
def atomic_store(e: em.Emitter, address: Value, value: Value) -> None:
    e.b.store_atomic(value, e.b.inttoptr(address, em.I64.as_pointer()), "release", 8)


@operation(void, i64)
def pause(e: em.Emitter, _unused: Value) -> None:
    """Tells the core that this is a spin loop."""
    if isinstance(e, Emitter) and "x86" in e.b.module.triple:
        function_type = ir.FunctionType(ir.VoidType(), [])
        name = "llvm.x86.sse2.pause"
        function = e.b.module.globals.get(name) or ir.Function(e.b.module, function_type, name)
        e.b.call(function, [])


@operation(void, i64)
def yield_core(e: em.Emitter, _unused: Value) -> None:
    """sched_yield(2): lets another runnable thread have the core."""
    name = "sched_yield"
    function = e.b.module.globals.get(name) or ir.Function(e.b.module, ir.FunctionType(em.I32, []), name)
    e.b.call(function, [])


@operation(i64, i64)
def now_ns(e: em.Emitter, _unused: Value) -> Value:
    """Nanoseconds of clock_gettime's CLOCK_MONOTONIC."""
    module, time = e.b.module, ir.ArrayType(em.I64, 2)
    kind = ir.FunctionType(em.I32, [em.I32, time.as_pointer()])
    function = module.globals.get("clock_gettime") or ir.Function(module, kind, "clock_gettime")
    with e.b.goto_entry_block():
        place = e.b.alloca(time)
    e.b.call(function, [em.I32(6 if "darwin" in module.triple else 1), place])
    seconds, nanoseconds = (e.b.extract_value(e.b.load(place), i) for i in range(2))
    return e.b.add(e.b.mul(seconds, em.I64(1_000_000_000)), nanoseconds)


@operation(void, i64, i64, i64, i64)
def call_kernel(e: em.Emitter, kernel: Value, args: Value, thread: Value, n_threads: Value) -> None:
    """Calls a kernel `void(int64 args, int64 thread, int64 n_threads)` by its address."""
    kind = ir.FunctionType(ir.VoidType(), [em.I64, em.I64, em.I64])
    e.b.call(e.b.inttoptr(kernel, kind.as_pointer()), [args, thread, n_threads])


@operation(void, i64, *[i64] * 8)
def call_tile(e: em.Emitter, tile: Value, *args: Value) -> None:
    """Calls a matmul tile `void(int64 x 8)` by its address."""
    kind = ir.FunctionType(ir.VoidType(), [em.I64] * 8)
    e.b.call(e.b.inttoptr(tile, kind.as_pointer()), args)


@operation(i64, i64, *[i64] * 5)
def call_cells(e: em.Emitter, function: Value, *args: Value) -> Value:
    """Calls a KV type's function `int64(int64 x 5)` by its address."""
    kind = ir.FunctionType(em.I64, [em.I64] * 5)
    return e.b.call(e.b.inttoptr(function, kind.as_pointer()), args)


@operation(i64, i64, i64)
def arg(e: em.Emitter, args: Value, index: Value) -> Value:
    """int64 number `index` of an argument block."""
    return e.load(em.I64, e.b.add(args, e.b.mul(index, em.I64(8))))


@operation(void, i64)
def prefetch(e: em.Emitter, address: Value) -> None:
    """Asks for a cache line that will be read soon."""
    pointer = em.I8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, em.I32, em.I32, em.I32])
    name = "llvm.prefetch.p0"
    function = e.b.module.globals.get(name) or ir.Function(e.b.module, kind, name)
    e.b.call(function, [e.b.inttoptr(address, pointer), em.I32(0), em.I32(2), em.I32(1)])


@operation(void, i64, i64)
def zero_bytes(e: em.Emitter, target: Value, n_bytes: Value) -> None:
    pointer = em.I8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, em.I8, em.I64, em.I1])
    name = "llvm.memset.p0.i64"
    function = e.b.module.globals.get(name) or ir.Function(e.b.module, kind, name)
    e.b.call(function, [e.b.inttoptr(target, pointer), em.I8(0), n_bytes, em.I1(0)])
