"""What AArch64 does better than plain LLVM: byte dot products (the dotprod extension) and half precision."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from llmkit.simd.emitter import I8, I32, I32X16, Emitter, Value

I8X16, I32X4 = ir.VectorType(I8, 16), ir.VectorType(I32, 4)


class NeonDotprod(Emitter):
    """NEON with dotprod: signed four-byte dot products, 16 bytes at a time."""

    native_f16 = True
    n_tokens_wide = 4

    def _quarter(self, value: Value, k: int, kind: ir.VectorType) -> Value:
        lanes = ir.Constant(ir.VectorType(I32, kind.count), list(range(kind.count * k, kind.count * (k + 1))))
        return self.b.shuffle_vector(value, value, lanes)

    def _dot_quarter(self, acc: Value, unsigned: Value, signed: Value, small: bool) -> Value:
        """Bytes below 128 are the same signed; others are taken as u - 128, and 128 * signed is added."""
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        if small:
            return self.intrinsic(name, I32X4, [acc, unsigned, signed])
        shifted = self.b.xor(unsigned, self.const(I8X16, -128))
        acc = self.intrinsic(name, I32X4, [acc, shifted, signed])
        sums = self.intrinsic(name, I32X4, [self.const(I32X4, 0), self.const(I8X16, 1), signed])
        return self.b.add(acc, self.b.shl(sums, self.const(I32X4, 7)))

    def dot_bytes(self, acc: Value, unsigned: Value, signed: Value, small: bool) -> Value:
        parts = [
            self._dot_quarter(
                self._quarter(acc, k, I32X4), self._quarter(unsigned, k, I8X16), self._quarter(signed, k, I8X16), small
            )
            for k in range(4)
        ]
        eight = ir.Constant(ir.VectorType(I32, 8), list(range(8)))
        low, high = (self.b.shuffle_vector(parts[k], parts[k + 1], eight) for k in (0, 2))
        return self.b.shuffle_vector(low, high, ir.Constant(I32X16, list(range(16))))

    def lookup16(self, codes: Value, table: Sequence[int]) -> Value:
        entries, name = ir.Constant(I8X16, list(table)), "llvm.aarch64.neon.tbl1.v16i8"
        parts = [self.intrinsic(name, I8X16, [entries, self._quarter(codes, k, I8X16)]) for k in range(4)]
        both = ir.Constant(ir.VectorType(I32, 32), list(range(32)))
        low, high = (self.b.shuffle_vector(parts[k], parts[k + 1], both) for k in (0, 2))
        return self.b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, 64), list(range(64))))
