"""Vector operations as LLVM IR, written so that every instruction set gives the same bits.

Lanes are fixed: 16 float32 or int32, 64 bytes. LLVM splits them for narrower machines. Integer dot products are
exact, float operations are single IEEE operations in program order, reductions are fixed trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
F32X16, I32X16, I16X16, I8X16 = (ir.VectorType(t, 16) for t in (F32, I32, I16, I8))
I8X64, I8X32, I16X32 = ir.VectorType(I8, 64), ir.VectorType(I8, 32), ir.VectorType(I16, 32)

Value = Any


class Emitter:
    """Emits vector operations into `builder`. The base class is the generic path: plain LLVM, nothing of a CPU."""

    native_f16 = False  # whether LLVM converts half precision without calling a library
    n_tokens_wide = 4  # tokens a matmul tile keeps in registers

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    # -- constants and memory -------------------------------------------------------------------------------------

    def const(self, kind: ir.Type, value: float) -> Value:
        """A scalar or a vector with `value` in each lane."""
        if isinstance(kind, ir.VectorType):
            return ir.Constant(kind, [value] * kind.count)
        return ir.Constant(kind, value)

    def offset(self, address: Value, n_bytes: int) -> Value:
        """`address + n_bytes` (an int64)."""
        return address if n_bytes == 0 else self.b.add(address, ir.Constant(I64, n_bytes))

    def load(self, kind: ir.Type, address: Value, n_bytes: int = 0) -> Value:
        """Reads `kind` at any alignment."""
        value = self.b.load(self.b.inttoptr(self.offset(address, n_bytes), kind.as_pointer()))
        value.align = 1
        return value

    def store(self, value: Value, address: Value, n_bytes: int = 0) -> None:
        """Writes `value` at any alignment."""
        self.b.store(value, self.b.inttoptr(self.offset(address, n_bytes), value.type.as_pointer())).align = 1

    def splat(self, scalar: Value, count: int = 16) -> Value:
        """A vector with `scalar` in each lane."""
        kind = ir.VectorType(scalar.type, count)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, count), [0] * count))

    def load_splat(self, kind: ir.Type, address: Value, n_bytes: int = 0) -> Value:
        """One scalar of memory in all 16 lanes."""
        return self.splat(self.load(kind, address, n_bytes))

    def load_bytes4(self, address: Value, n_bytes: int = 0) -> Value:
        """Four bytes of memory, 16 times: the activations of one token that meet 16 rows."""
        return self.b.bitcast(self.load_splat(I32, address, n_bytes), I8X64)

    def load_f16(self, address: Value, n_bytes: int = 0) -> Value:
        """16 half-precision values as float32."""
        return self.f16_to_f32(self.load(I16X16, address, n_bytes))

    def load_bf16(self, address: Value, n_bytes: int = 0) -> Value:
        """16 bfloat16 values as float32."""
        wide = self.b.zext(self.load(I16X16, address, n_bytes), I32X16)
        return self.b.bitcast(self.b.shl(wide, self.const(I32X16, 16)), F32X16)

    # -- float ----------------------------------------------------------------------------------------------------

    def intrinsic(self, name: str, result: ir.Type, args: Sequence[Value]) -> Value:
        """Calls an LLVM intrinsic, declaring it once per module."""
        module = self.b.module
        kind = ir.FunctionType(result, [a.type for a in args])
        function = module.globals.get(name) or ir.Function(module, kind, name)
        return self.b.call(function, args)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """`a * b + c`, rounded once."""
        suffix = f"v{a.type.count}f32" if isinstance(a.type, ir.VectorType) else "f32"
        return self.intrinsic(f"llvm.fma.{suffix}", a.type, [a, b, c])

    def to_float(self, value: Value) -> Value:
        """int32 lanes as float32, rounded to nearest even."""
        return self.b.sitofp(value, F32X16)

    def round_to_int(self, value: Value) -> Value:
        """float32 lanes to int32, nearest even; NaN gives 0, what is out of range the nearest int32."""
        return self.truncate_to_int(self.intrinsic("llvm.rint.v16f32", F32X16, [value]))

    def truncate_to_int(self, value: Value) -> Value:
        """float32 lanes to int32, towards zero; NaN gives 0, what is out of range the nearest int32."""
        return self.intrinsic("llvm.fptosi.sat.v16i32.v16f32", I32X16, [value])

    def maximum(self, a: Value, b: Value) -> Value:
        """Maximum; NaN where either is NaN."""
        suffix = f"v{a.type.count}f32" if isinstance(a.type, ir.VectorType) else "f32"
        return self.intrinsic(f"llvm.maximum.{suffix}", a.type, [a, b])

    def absolute(self, value: Value) -> Value:
        return self.intrinsic("llvm.fabs.v16f32", F32X16, [value])

    # -- half precision -------------------------------------------------------------------------------------------

    def f16_to_f32(self, bits: Value) -> Value:
        """16 half-precision bit patterns to float32, exact."""
        if self.native_f16:
            return self.b.fpext(self.b.bitcast(bits, ir.VectorType(F16, 16)), F32X16)
        b, wide = self.b, self.b.zext(bits, I32X16)
        magnitude = b.shl(b.and_(wide, self.const(I32X16, 0x7FFF)), self.const(I32X16, 13))
        sign = b.shl(b.and_(wide, self.const(I32X16, 0x8000)), self.const(I32X16, 16))
        # 2^112 re-biases the exponent and makes subnormals normal in one exact multiplication.
        scaled = b.bitcast(b.fmul(b.bitcast(magnitude, F32X16), self.const(F32X16, 2.0**112)), I32X16)
        special = b.icmp_unsigned(">=", magnitude, self.const(I32X16, 0x7C00 << 13))
        infinite = b.or_(magnitude, self.const(I32X16, 0x7F800000))
        return b.bitcast(b.or_(b.select(special, infinite, scaled), sign), F32X16)

    def f32_to_f16(self, value: Value) -> Value:
        """16 float32 to half-precision bit patterns, nearest even, overflow to infinity."""
        if self.native_f16:
            return self.b.bitcast(self.b.fptrunc(value, ir.VectorType(F16, 16)), I16X16)
        b, c = self.b, lambda v: self.const(I32X16, v)
        bits = b.bitcast(value, I32X16)
        sign, magnitude = b.and_(bits, c(-0x80000000)), b.and_(bits, c(0x7FFFFFFF))
        # Adding 0.5 aligns a subnormal result's bits at the bottom, rounded by the adder itself.
        tiny = b.sub(b.bitcast(b.fadd(b.bitcast(magnitude, F32X16), self.const(F32X16, 0.5)), I32X16), c(0x3F000000))
        odd = b.and_(b.lshr(magnitude, c(13)), c(1))
        normal = b.lshr(b.add(b.add(magnitude, c(0xFFF - (112 << 23))), odd), c(13))
        nan = b.or_(b.and_(b.lshr(magnitude, c(13)), c(0x3FF)), c(0x7E00))
        half = b.select(b.icmp_unsigned("<", magnitude, c(113 << 23)), tiny, normal)
        half = b.select(b.icmp_unsigned(">=", magnitude, c(0x47800000)), c(0x7C00), half)
        half = b.select(b.icmp_unsigned(">", magnitude, c(0x7F800000)), nan, half)
        return b.trunc(b.or_(half, b.lshr(sign, c(16))), I16X16)

    def f32_to_bf16(self, value: Value) -> Value:
        """16 float32 to bfloat16 bit patterns, nearest even; NaN stays NaN."""
        b, c = self.b, lambda v: self.const(I32X16, v)
        bits = b.bitcast(value, I32X16)
        odd = b.and_(b.lshr(bits, c(16)), c(1))
        rounded = b.lshr(b.add(bits, b.add(odd, c(0x7FFF))), c(16))
        nan = b.or_(b.lshr(bits, c(16)), c(64))
        return b.trunc(b.select(b.fcmp_unordered("uno", value, value), nan, rounded), I16X16)

    def lookup_f32(self, table: Value, index: Value) -> Value:
        """Lane index & 15 of `table` for each of 16 lanes. Here by way of memory."""
        with self.b.goto_entry_block():
            place = self.b.alloca(F32, 16)
        self.b.store(table, self.b.bitcast(place, F32X16.as_pointer())).align = 4
        found = ir.Constant(F32X16, ir.Undefined)
        low = self.b.and_(index, self.const(I32X16, 15))
        for lane in range(16):
            value = self.b.load(self.b.gep(place, [self.b.extract_element(low, I32(lane))]))
            found = self.b.insert_element(found, value, I32(lane))
        return found

    # -- reductions: fixed trees, upper half onto lower -----------------------------------------------------------

    def _halves(self, value: Value) -> tuple[Value, Value]:
        n = value.type.count // 2
        lanes = [ir.Constant(ir.VectorType(I32, n), list(range(k, k + n))) for k in (0, n)]
        low, high = (self.b.shuffle_vector(value, value, lane) for lane in lanes)
        return low, high

    def sum(self, value: Value) -> Value:
        """Sum of the lanes: 8+8, 4+4, 2+2, 1+1."""
        while value.type.count > 2:
            value = self.b.fadd(*self._halves(value))
        low, high = (self.b.extract_element(value, ir.Constant(I32, i)) for i in (0, 1))
        return self.b.fadd(low, high)

    def largest(self, value: Value) -> Value:
        """Largest lane."""
        while value.type.count > 2:
            value = self.maximum(*self._halves(value))
        low, high = (self.b.extract_element(value, ir.Constant(I32, i)) for i in (0, 1))
        return self.maximum(low, high)

    def sum_int(self, value: Value) -> Value:
        """Sum of int32 lanes (exact)."""
        return self.intrinsic("llvm.vector.reduce.add.v16i32", I32, [value])

    # -- bytes ----------------------------------------------------------------------------------------------------

    def and_bytes(self, value: Value, mask: int) -> Value:
        return self.b.and_(value, self.const(I8X64, mask))

    def shift_bytes(self, value: Value, n: int) -> Value:
        """64 bytes shifted left by `n` bits (right for negative n) as 16-bit lanes: the caller masks what crosses."""
        if n == 0:
            return value
        kind = ir.VectorType(I16, 32)
        wide = self.b.bitcast(value, kind)
        shifted = self.b.shl(wide, self.const(kind, n)) if n > 0 else self.b.lshr(wide, self.const(kind, -n))
        return self.b.bitcast(shifted, I8X64)

    def dot_bytes(self, acc: Value, unsigned: Value, signed: Value, small: bool) -> Value:
        """acc[i] += sum of unsigned[4i+j] * signed[4i+j], j = 0..3; exact. `small`: unsigned bytes are below 128."""
        b, wide = self.b, ir.VectorType(I32, 64)
        product = b.mul(b.zext(unsigned, wide), b.sext(signed, wide))
        lanes = [ir.Constant(I32X16, list(range(k, 64, 4))) for k in range(4)]
        parts = [b.shuffle_vector(product, product, lane) for lane in lanes]
        return b.add(acc, b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3])))

    def lookup16(self, codes: Value, table: Sequence[int]) -> Value:
        """table[code] for 64 codes 0..15 in bytes; `table`: 16 bytes 0..255. Here a tree of choices, bit by bit."""
        values = [self.const(I8X64, value) for value in table]
        for bit in range(4):
            is_set = self.b.icmp_unsigned("!=", self.and_bytes(codes, 1 << bit), self.const(I8X64, 0))
            values = [self.b.select(is_set, odd, even) for even, odd in zip(values[0::2], values[1::2], strict=True)]
        return values[0]
