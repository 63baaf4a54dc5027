"""Tile formats of 32, 64 and 128 columns with codes of 1 to 4 bits: one or more blocks of Q8_32 activations each."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from llmkit.kernels import activation_tile as at
from llmkit.quants.planes import Planes
from llmkit.quants.scaled_formats import lane_splat
from llmkit.quants.tile import TileFormat, dot_groups
from llmkit.simd import emitter as em
from llmkit.simd.loop import emit_loop

Value = Any
X_BYTES = at.BLOCK_BYTES[at.Q8_32]


def load_e8m0(e: em.Emitter, address: Value) -> Value:
    """16 exponents as float32 2^(byte - 128): half of the OCP MX scale, as the values of MXFP4 are doubled."""
    exponent = e.b.zext(e.load(em.I8X16, address), em.I32X16)
    normal = e.b.shl(e.b.sub(exponent, e.const(em.I32X16, 1)), e.const(em.I32X16, 23))
    subnormal = e.b.shl(e.const(em.I32X16, 0x00200000), e.b.and_(exponent, e.const(em.I32X16, 1)))
    is_normal = e.b.icmp_unsigned(">", exponent, e.const(em.I32X16, 1))
    return e.b.bitcast(e.b.select(is_normal, normal, subnormal), em.F32X16)


def load_e4m3(e: em.Emitter, address: Value, n_bytes: int) -> Value:
    """16 unsigned E4M3 values (below 0x80) as half their float32: exponent and fraction moved into place, re-biased."""
    wide = e.b.zext(e.load(em.I8X16, address, n_bytes), em.I32X16)
    bits = e.b.bitcast(e.b.shl(wide, e.const(em.I32X16, 20)), em.F32X16)
    return e.b.fmul(bits, e.const(em.F32X16, 2.0**119))


def sums_of_16(e: em.Emitter, x: Value, lanes: range) -> Value:
    """Sums of 16 columns of the activations: lane 2 i + half is of the i-th token (of 1, 4 or 8) of `lanes`."""
    ones, zero = e.const(em.I8X64, 1), e.const(em.I32X16, 0)
    even, odd = (ir.Constant(em.I32X16, list(range(start, 32, 2))) for start in (0, 1))
    pairs = range(lanes.start, lanes.stop, 2)
    rows = [
        e.dot_bytes(zero, ones, e.load(em.I8X64, x, 32 * m), True) for m in pairs
    ]  # of two tokens, 4 columns a lane
    for _ in range(2):
        others = rows[1::2] or rows
        rows = [
            e.b.add(e.b.shuffle_vector(a, b, even), e.b.shuffle_vector(a, b, odd))
            for a, b in zip(rows[0::2], others, strict=True)
        ]
    return rows[0]


class SmallBlockFormat(TileFormat):
    """A weight is d * (value - 2^zero_bits), d of the whole block: `n_parts` x 32 columns of codes, then 16 scales.

    scale: `f16`, or `e8m0` (a byte each).
    """

    activation = at.Q8_32

    def __init__(self, n_parts: int, planes: Planes, zero_bits: int, scale: str = "f16") -> None:
        self.n_parts, self.planes, self.zero_bits, self.scale = n_parts, planes, zero_bits, scale
        self.block = 32 * n_parts
        self.scale_offset = n_parts * planes.n_bytes
        self.tile_bytes = self.scale_offset + (32 if scale == "f16" else 16)

    def _d(self, e: em.Emitter, w: Value) -> Value:
        return e.load_f16(w, self.scale_offset) if self.scale == "f16" else load_e8m0(e, e.offset(w, self.scale_offset))

    def _dots(self, e: em.Emitter, w: Value, x: Value, lanes: range) -> list[Value]:
        shift = e.const(em.I32X16, self.zero_bits)
        start = [e.b.shl(e.load_splat(em.I32, x, at.Q8_32_NEG_SUM + 4 * m), shift) for m in lanes]
        return dot_groups(e, self.planes.reader(e, w), range(8), x, lanes, start, self.planes.small)

    def emit_block(self, e: em.Emitter, w: Value, x: Value, lanes: range, acc: list[Value]) -> list[Value]:
        d = self._d(e, w)

        def body(p: Value, acc: list[Value]) -> list[Value]:
            x_part = e.b.add(x, e.b.mul(p, em.I64(X_BYTES)))
            dots = self._dots(e, e.b.add(w, e.b.mul(p, em.I64(self.planes.n_bytes))), x_part, lanes)
            for i, m in enumerate(lanes):
                scale = e.b.fmul(d, e.load_splat(em.F32, x_part, at.Q8_32_SCALE + 4 * m))
                acc[i] = e.fma(e.to_float(dots[i]), scale, acc[i])
            return acc

        return body(em.I64(0), acc) if self.n_parts == 1 else emit_loop(e.b, em.I64(self.n_parts), acc, body)


class Nvfp4Format(TileFormat):
    """NVFP4: 64 columns, a weight is scale * (value - 16), scale (unsigned E4M3, halved) of 16 columns.

    2 x 256 bytes of codes, 4 x 16 scales. The zero needs the activations' sums of 16 columns, which Q8_32 has not: they
    are computed here, for all tokens together.
    """

    block, activation = 64, at.Q8_32
    tile_bytes = 512 + 64

    def __init__(self, planes: Planes) -> None:
        self.planes = planes

    def _starts(self, e: em.Emitter, x: Value, lanes: range) -> list[list[Value]]:
        """For each half of 32 columns and each token: minus 16 times the sum of the activations."""
        sums = sums_of_16(e, x, lanes)
        minus = e.b.shl(e.b.neg(sums), e.const(em.I32X16, 4))
        return [[lane_splat(e, minus, 2 * i + half) for i in range(len(lanes))] for half in range(2)]

    def emit_block(self, e: em.Emitter, w: Value, x: Value, lanes: range, acc: list[Value]) -> list[Value]:
        def body(p: Value, acc: list[Value]) -> list[Value]:
            def at_part(base: Value, step: int) -> Value:
                return e.b.add(base, e.b.mul(p, em.I64(step)))

            x_part, codes, scales = at_part(x, X_BYTES), self.planes.reader(e, at_part(w, 256)), at_part(w, 32)
            sums = [e.const(em.F32X16, 0.0)] * len(lanes)
            for i, start in enumerate(self._starts(e, x_part, lanes)):
                scale = load_e4m3(e, scales, 512 + 16 * i)
                dots = dot_groups(e, codes, range(4 * i, 4 * i + 4), x_part, lanes, start)
                sums = [e.fma(e.to_float(dot), scale, s) for dot, s in zip(dots, sums, strict=True)]
            d = [e.load_splat(em.F32, x_part, at.Q8_32_SCALE + 4 * m) for m in lanes]
            return [e.fma(s, scale, a) for s, scale, a in zip(sums, d, acc, strict=True)]

        return emit_loop(e.b, em.I64(2), acc, body)
