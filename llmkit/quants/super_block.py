"""Tile formats of the K-quants: 256 columns with integer scales of their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmkit.kernels import activation_tile as at
from llmkit.quants.tile import TileFormat, dot_groups, nibble_codes, with_high_bits, zeros
from llmkit.simd import emitter as em
from llmkit.simd.loop import emit_loop

Value = Any


class SuperBlockFormat(TileFormat):
    """Eight parts of 32 columns; the parts' sums are scaled by the activations' d at the end."""

    block, activation = 256, at.Q8_256
    part_bytes: int  # codes of 16 rows x 32 columns

    def emit_part(self, e: em.Emitter, part: Part, lanes: range, sums: list[Value]) -> list[Value]:
        """Adds a part's products, in units of the activations' d."""
        raise NotImplementedError

    def emit_block(self, e: em.Emitter, w: Value, x: Value, lanes: range, acc: list[Value]) -> list[Value]:
        def body(j: Value, sums: list[Value]) -> list[Value]:
            return self.emit_part(e, Part(e, w, x, j, self.part_bytes), lanes, sums)

        sums = emit_loop(e.b, em.I64(8), [e.const(em.F32X16, 0.0)] * len(lanes), body)
        scales = [e.load_splat(em.F32, x, at.Q8_256_SCALE + 4 * m) for m in lanes]
        return [e.fma(s, d, a) for s, d, a in zip(sums, scales, acc, strict=True)]


class Part:
    """Addresses of part j: codes, activations, their sums and the weights' scales behind all codes."""

    def __init__(self, e: em.Emitter, w: Value, x: Value, j: Value, part_bytes: int) -> None:
        def at_part(base: Value, offset: int, step: int) -> Value:
            return e.b.add(e.offset(base, offset), e.b.mul(j, em.I64(step)))

        self.codes = at_part(w, 0, part_bytes)
        self.scales: Callable[[int, int], Value] = lambda offset, step: at_part(w, 8 * part_bytes + offset, step)
        self.after: Callable[[int], Value] = lambda offset: e.offset(w, 8 * part_bytes + offset)
        self.x = at_part(x, 0, 256)
        self.neg_sum = at_part(x, at.Q8_256_NEG_SUM, 64)
        self.sum = at_part(x, at.Q8_256_SUM, 32)


def _u8_to_float(e: em.Emitter, address: Value) -> Value:
    return e.to_float(e.b.zext(e.load(em.I8X16, address), em.I32X16))


def _i8_to_float(e: em.Emitter, address: Value) -> Value:
    return e.to_float(e.b.sext(e.load(em.I8X16, address), em.I32X16))


class ScaleMinFormat(SuperBlockFormat):
    """Q4_K and Q5_K: a weight is d * scale * code - dmin * min, scale and min of its 32 columns.

    8 parts of codes (256 or 320 bytes), 8 x 16 scales (u8), 8 x 16 minima (u8), 16 d, 16 dmin (f16).
    """

    def __init__(self, n_bits: int) -> None:
        self.n_bits, self.part_bytes = n_bits, 64 * n_bits
        self.tile_bytes = 8 * self.part_bytes + 2 * 128 + 64

    def emit_part(self, e: em.Emitter, part: Part, lanes: range, sums: list[Value]) -> list[Value]:
        plane = e.load(em.I8X64, part.codes, 256) if self.n_bits == 5 else None

        def codes(group: int) -> Value:
            low = nibble_codes(e, part.codes, group)
            return low if plane is None else with_high_bits(e, low, plane, group, 1)

        dots = dot_groups(e, codes, range(8), part.x, lanes, zeros(e, len(lanes)))
        scale = e.b.fmul(_u8_to_float(e, part.scales(0, 16)), e.load_f16(part.after(256)))
        minimum = e.b.fmul(_u8_to_float(e, part.scales(128, 16)), e.load_f16(part.after(288)))
        minimum = e.b.fneg(minimum)
        sums = [e.fma(e.to_float(dot), scale, s) for dot, s in zip(dots, sums, strict=True)]
        totals = [e.load_splat(em.F32, part.sum, 4 * m) for m in lanes]
        return [e.fma(minimum, total, s) for total, s in zip(totals, sums, strict=True)]


class Q6KFormat(SuperBlockFormat):
    """Q6_K: a weight is d * scale * (code - 32), scale of its 16 columns.

    8 parts of codes (256 bytes of low, 2 x 64 of high bits), 16 x 16 scales (i8), 16 d (f16).
    """

    part_bytes = 384
    tile_bytes = 8 * 384 + 256 + 32

    def emit_part(self, e: em.Emitter, part: Part, lanes: range, sums: list[Value]) -> list[Value]:
        d = e.load_f16(part.after(256))
        shift = e.const(em.I32X16, 5)
        for half in (0, 1):
            plane = e.load(em.I8X64, part.codes, 256 + 64 * half)

            def codes(group: int, plane: Value = plane) -> Value:
                return with_high_bits(e, nibble_codes(e, part.codes, group), plane, 2 * (group % 4), 2)

            start = [e.b.shl(e.load_splat(em.I32, part.neg_sum, 32 * half + 4 * m), shift) for m in lanes]
            dots = dot_groups(e, codes, range(4 * half, 4 * half + 4), part.x, lanes, start)
            scale = e.b.fmul(_i8_to_float(e, e.offset(part.scales(0, 32), 16 * half)), d)
            sums = [e.fma(e.to_float(dot), scale, s) for dot, s in zip(dots, sums, strict=True)]
        return sums
