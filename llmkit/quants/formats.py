"""The three families of tile formats: float rows, 32-column blocks, 256-column super-blocks."""

from __future__ import annotations

from typing import Any

from llmkit.kernels import activation_tile as at
from llmkit.quants.tile import TileFormat, dot_groups, nibble_codes, with_high_bits, zeros
from llmkit.simd import emitter as em

Value = Any
ALL = range(8)


class FloatFormat(TileFormat):
    """Columns one after the other, 16 rows each; the sums run over columns in order."""

    block, activation = 1, at.F32

    def __init__(self, item_bytes: int, load: str) -> None:
        self.tile_bytes, self._load = 16 * item_bytes, load

    def emit_block(self, e: em.Emitter, w: Value, x: Value, lanes: range, acc: list[Value]) -> list[Value]:
        row = e.load(em.F32X16, w) if self._load == "load_f32" else getattr(e, self._load)(w)
        return [e.fma(row, e.load_splat(em.F32, x, 4 * m), a) for m, a in zip(lanes, acc, strict=True)]


class Block32Format(TileFormat):
    """32 columns: codes of 4, 5 or 8 bits (256, 320, 512 bytes), then 16 scales d and, with `has_min`, 16 minima (f16).

    A weight is d * (code - zero) or d * code + min; `zero` is a power of two.
    """

    block, activation = 32, at.Q8_32

    def __init__(self, n_bits: int, has_min: bool) -> None:
        self.n_bits, self.has_min = n_bits, has_min
        self.scale_offset = 64 * n_bits
        self.tile_bytes = self.scale_offset + (64 if has_min else 32)

    def _codes(self, e: em.Emitter, w: Value) -> Any:
        if self.n_bits == 8:
            return lambda group: e.load(em.I8X64, w, 64 * group)
        if self.n_bits == 4:
            return lambda group: nibble_codes(e, w, group)
        plane = e.load(em.I8X64, w, 256)
        return lambda group: with_high_bits(e, nibble_codes(e, w, group), plane, group, 1)

    def _start(self, e: em.Emitter, x: Value, lanes: range) -> list[Value]:
        """What takes `zero` off every code: minus the sum of the activations, times zero."""
        if self.has_min:
            return zeros(e, len(lanes))
        shift = e.const(em.I32X16, self.n_bits - 1)
        return [e.b.shl(e.load_splat(em.I32, x, at.Q8_32_NEG_SUM + 4 * m), shift) for m in lanes]

    def emit_block(self, e: em.Emitter, w: Value, x: Value, lanes: range, acc: list[Value]) -> list[Value]:
        dots = dot_groups(e, self._codes(e, w), ALL, x, lanes, self._start(e, x, lanes), self.n_bits < 8)
        d = e.load_f16(w, self.scale_offset)
        for i, m in enumerate(lanes):
            scale = e.b.fmul(d, e.load_splat(em.F32, x, at.Q8_32_SCALE + 4 * m))
            acc[i] = e.fma(e.to_float(dots[i]), scale, acc[i])
        if self.has_min:
            minimum = e.load_f16(w, self.scale_offset + 32)
            for i, m in enumerate(lanes):
                acc[i] = e.fma(minimum, e.load_splat(em.F32, x, at.Q8_32_SCALED_SUM + 4 * m), acc[i])
        return acc
