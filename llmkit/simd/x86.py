"""What x86 does better than plain LLVM: byte dot products and half precision."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from llmkit.simd.emitter import F32, F32X16, I8X32, I8X64, I32, I32X16, Emitter, Value

I16X16, I32X8, F32X8 = ir.VectorType(ir.IntType(16), 16), ir.VectorType(I32, 8), ir.VectorType(F32, 8)


class Avx512Vnni(Emitter):
    """AVX-512 with VNNI: four byte products and a sum in one instruction."""

    native_f16 = True
    n_tokens_wide = 8

    def dot_bytes(self, acc: Value, unsigned: Value, signed: Value, small: bool) -> Value:
        return self.intrinsic("llvm.x86.avx512.vpdpbusd.512", I32X16, [acc, unsigned, signed])

    def lookup16(self, codes: Value, table: Sequence[int]) -> Value:
        entries = ir.Constant(I8X64, list(table) * 4)
        return self.intrinsic("llvm.x86.avx512.pshuf.b.512", I8X64, [entries, codes])

    def lookup_f32(self, table: Value, index: Value) -> Value:
        return self.intrinsic("llvm.x86.avx512.permvar.sf.512", F32X16, [table, index])


class Avx2(Emitter):
    """AVX2 with FMA and F16C: pairs of byte products in 16 bits, which only bytes below 128 never overflow."""

    native_f16 = True
    n_tokens_wide = 4

    def _pairs(self, unsigned: Value, signed: Value, factor: int) -> Value:
        """One half (32 bytes): sums of four products, times `factor`."""
        pairs = self.intrinsic("llvm.x86.avx2.pmadd.ub.sw", I16X16, [unsigned, signed])
        return self.intrinsic("llvm.x86.avx2.pmadd.wd", I32X8, [pairs, self.const(I16X16, factor)])

    def _dot_half(self, unsigned: Value, signed: Value, small: bool) -> Value:
        if small:
            return self._pairs(unsigned, signed, 1)
        low = self.b.and_(unsigned, self.const(I8X32, 15))
        high = self.b.lshr(self.b.bitcast(unsigned, I16X16), self.const(I16X16, 4))
        high = self.b.and_(self.b.bitcast(high, I8X32), self.const(I8X32, 15))
        return self.b.add(self._pairs(low, signed, 1), self._pairs(high, signed, 16))

    def dot_bytes(self, acc: Value, unsigned: Value, signed: Value, small: bool) -> Value:
        halves = zip(self._halves(unsigned), self._halves(signed), strict=True)
        low, high = (self._dot_half(u, s, small) for u, s in halves)
        lanes = ir.Constant(I32X16, list(range(16)))
        return self.b.add(acc, self.b.shuffle_vector(low, high, lanes))

    def lookup16(self, codes: Value, table: Sequence[int]) -> Value:
        entries = ir.Constant(I8X32, list(table) * 2)
        low, high = (self.intrinsic("llvm.x86.avx2.pshuf.b", I8X32, [entries, half]) for half in self._halves(codes))
        return self.b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, 64), list(range(64))))

    def lookup_f32(self, table: Value, index: Value) -> Value:
        def half_of(places: Value) -> Value:
            low, high = (self.intrinsic("llvm.x86.avx2.permps", F32X8, [t, places]) for t in self._halves(table))
            bit_3 = self.b.shl(places, ir.Constant(I32X8, [28] * 8))
            return self.b.select(self.b.icmp_signed("<", bit_3, ir.Constant(I32X8, [0] * 8)), high, low)

        low, high = (half_of(places) for places in self._halves(index))
        return self.b.shuffle_vector(low, high, ir.Constant(I32X16, list(range(16))))
