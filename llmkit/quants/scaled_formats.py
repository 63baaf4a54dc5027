"""Tile formats of 256 columns whose parts have integer scales: most low-bit K-quants and IQ types.

All begin with 8 parts of codes (see planes); what follows is said with each format. f16 values are the file's d.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from llmkit.kernels import activation_tile as at
from llmkit.quants.planes import Planes
from llmkit.quants.super_block import Part, SuperBlockFormat
from llmkit.quants.tile import dot_groups, zeros
from llmkit.simd import emitter as em
from llmkit.simd.loop import emit_loop

Value = Any
I32X8 = ir.VectorType(em.I32, 8)


def lane_splat(e: em.Emitter, tokens: Value, lane: int) -> Value:
    """One token's value, of a vector that has one for each of 8 tokens, in 16 lanes."""
    return e.b.shuffle_vector(tokens, tokens, ir.Constant(em.I32X16, [lane] * 16))


def minus_sums(e: em.Emitter, address: Value, n: int, shift: int, lanes: range) -> list[Value]:
    """Minus the sums of n x 16 columns' activations, times 2^shift: takes 2^shift off each code."""
    total = e.load(I32X8, address)
    for i in range(1, n):
        total = e.b.add(total, e.load(I32X8, address, 32 * i))
    total = e.b.shl(total, e.const(I32X8, shift))
    return [lane_splat(e, total, m) for m in lanes]


def bytes_to_int(e: em.Emitter, address: Value, signed: bool) -> Value:
    """16 bytes as int32."""
    value = e.load(em.I8X16, address)
    return e.b.sext(value, em.I32X16) if signed else e.b.zext(value, em.I32X16)


class ScaledFormat(SuperBlockFormat):
    """A weight is d * unit * scale * (value - 2^zero_bits), scale of 16 or 32 columns.

    scales: `i8_16`: int8 of 16 columns, 16 x 16 bytes. `i8_32`: int8 of 32 columns, 8 x 16 bytes. `odd_16`: 2 s + 1 of
    16 columns, s in the low half of a byte for the first 16 of 32 columns, 8 x 16 bytes. Then 16 d (f16).
    """

    def __init__(self, planes: Planes, zero_bits: int, scales: str, unit: float = 1.0) -> None:
        self.planes, self.zero_bits, self.scales, self.unit = planes, zero_bits, scales, unit
        self.part_bytes = planes.n_bytes
        self.n_scale_bytes = 256 if scales == "i8_16" else 128
        self.tile_bytes = 8 * self.part_bytes + self.n_scale_bytes + 32

    def _scales(self, e: em.Emitter, part: Part) -> list[Value]:
        """The part's one or two scales, times d."""
        d = e.load_f16(part.after(self.n_scale_bytes))
        if self.unit != 1.0:
            d = e.b.fmul(d, e.const(em.F32X16, self.unit))
        if self.scales == "odd_16":
            packed, double = bytes_to_int(e, part.scales(0, 16), False), e.b.fadd(d, d)
            halves = e.b.and_(packed, e.const(em.I32X16, 15)), e.b.lshr(packed, e.const(em.I32X16, 4))
            return [e.fma(e.to_float(half), double, d) for half in halves]
        n = 2 if self.scales == "i8_16" else 1
        first = part.scales(0, 16 * n)
        return [e.b.fmul(e.to_float(bytes_to_int(e, e.offset(first, 16 * i), True)), d) for i in range(n)]

    def _codes(self, e: em.Emitter, part: Part) -> Any:
        return self.planes.reader(e, part.codes)

    def emit_part(self, e: em.Emitter, part: Part, lanes: range, sums: list[Value]) -> list[Value]:
        codes, scales = self._codes(e, part), self._scales(e, part)
        n = 8 // len(scales)
        for i, scale in enumerate(scales):
            start = minus_sums(e, e.offset(part.neg_sum, 32 * i), n // 4, self.zero_bits, lanes)
            dots = dot_groups(e, codes, range(n * i, n * i + n), part.x, lanes, start, self.planes.small)
            sums = [e.fma(e.to_float(dot), scale, s) for dot, s in zip(dots, sums, strict=True)]
        return sums


class Q2KFormat(SuperBlockFormat):
    """Q2_K: a weight is d * scale * code - dmin * min, scale and min of 16 columns.

    Then 16 x 16 bytes of scale (low half) and min (high half), 16 d, 16 dmin.
    """

    planes = Planes(2)
    part_bytes = planes.n_bytes
    tile_bytes = 8 * part_bytes + 256 + 64

    def emit_part(self, e: em.Emitter, part: Part, lanes: range, sums: list[Value]) -> list[Value]:
        codes = self.planes.reader(e, part.codes)
        d, dmin = e.load_f16(part.after(256)), e.load_f16(part.after(288))
        for i in range(2):
            packed = bytes_to_int(e, e.offset(part.scales(0, 32), 16 * i), False)
            scale = e.b.fmul(e.to_float(e.b.and_(packed, e.const(em.I32X16, 15))), d)
            minimum = e.b.fmul(e.to_float(e.b.lshr(packed, e.const(em.I32X16, 4))), dmin)
            dots = dot_groups(e, codes, range(4 * i, 4 * i + 4), part.x, lanes, zeros(e, len(lanes)))
            sums = [e.fma(e.to_float(dot), scale, s) for dot, s in zip(dots, sums, strict=True)]
            minus = e.b.sitofp(e.load(I32X8, part.neg_sum, 32 * i), ir.VectorType(em.F32, 8))
            sums = [e.fma(lane_splat(e, minus, m), minimum, s) for m, s in zip(lanes, sums, strict=True)]
        return sums


class Iq1SFormat(SuperBlockFormat):
    """IQ1_S: a weight is d * |scale| * (code - 1 + delta), scale of 32 columns, delta 1/8 with the sign of scale.

    Then 8 x 16 scales (i8), 16 d.
    """

    planes = Planes(2)
    part_bytes = planes.n_bytes
    tile_bytes = 8 * part_bytes + 128 + 32

    def emit_part(self, e: em.Emitter, part: Part, lanes: range, sums: list[Value]) -> list[Value]:
        d = e.load_f16(part.after(128))
        signed = e.b.fmul(e.to_float(bytes_to_int(e, part.scales(0, 16), True)), d)
        scale = e.b.fmul(e.to_float(self._size(e, part)), d)
        shift = e.fma(signed, e.const(em.F32X16, 0.125), e.b.fneg(scale))
        dots = dot_groups(e, self.planes.reader(e, part.codes), range(8), part.x, lanes, zeros(e, len(lanes)))
        sums = [e.fma(e.to_float(dot), scale, s) for dot, s in zip(dots, sums, strict=True)]
        totals = [e.load_splat(em.F32, part.sum, 4 * m) for m in lanes]
        return [e.fma(shift, total, s) for total, s in zip(totals, sums, strict=True)]

    def _size(self, e: em.Emitter, part: Part) -> Value:
        """|scale|: scales are odd and below 16, the sign apart."""
        value = bytes_to_int(e, part.scales(0, 16), True)
        negative = e.b.icmp_signed("<", value, e.const(em.I32X16, 0))
        return e.b.select(negative, e.b.neg(value), value)


class Iq1MFormat(ScaledFormat):
    """IQ1_M: eight times a weight is d * (2 s + 1) * (8 g +- 1), s of 16 columns, the sign of 8 columns.

    The bytes are 8 g +- 1 + 16: the code 0..3 in bits 3 and 4, below it 1 (plus) or 7 (minus). As ScaledFormat with
    `odd_16`; behind d, for each 8 columns, 16 bits that are set for the rows whose sign is minus.
    """

    def __init__(self) -> None:
        super().__init__(Planes(2, lift=3), 4, "odd_16", 0.125)
        self.tile_bytes += 64

    def _codes(self, e: em.Emitter, part: Part) -> Any:
        codes, masks = self.planes.reader(e, part.codes), part.scales(self.n_scale_bytes + 32, 8)
        plus, minus = e.const(em.I32X16, 0x01010101), e.const(em.I32X16, 0x07070707)

        def signed(group: int) -> Value:
            mask = e.b.bitcast(e.load(em.I16, masks, 2 * (group // 2)), ir.VectorType(em.I1, 16))
            return e.b.or_(codes(group), e.b.bitcast(e.b.select(mask, minus, plus), em.I8X64))

        return signed


class TernaryFormat(SuperBlockFormat):
    """TQ1_0 and TQ2_0: a weight is d * (code - 1). After the codes 16 d; all 256 columns are one integer sum."""

    planes = Planes(2)
    part_bytes = planes.n_bytes
    tile_bytes = 8 * part_bytes + 32

    def emit_block(self, e: em.Emitter, w: Value, x: Value, lanes: range, acc: list[Value]) -> list[Value]:
        def body(j: Value, state: list[Value]) -> list[Value]:
            part = Part(e, w, x, j, self.part_bytes)
            minus = e.b.add(e.load(I32X8, part.neg_sum), e.load(I32X8, part.neg_sum, 32))
            codes = self.planes.reader(e, part.codes)
            return [e.b.add(state[0], minus), *dot_groups(e, codes, range(8), part.x, lanes, state[1:])]

        minus, *dots = emit_loop(e.b, em.I64(8), [e.const(I32X8, 0), *zeros(e, len(lanes))], body)
        d = e.load_f16(w, 8 * self.part_bytes)
        for i, m in enumerate(lanes):
            total = e.to_float(e.b.add(dots[i], lane_splat(e, minus, m)))
            acc[i] = e.fma(total, e.b.fmul(d, e.load_splat(em.F32, x, at.Q8_256_SCALE + 4 * m)), acc[i])
        return acc
