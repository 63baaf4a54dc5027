"""Cells of quantised types: 32 values of one token's head share a scale, with the codes that ggml's quantiser gives.

Of 32 cells and 32 values (dims) lie, in this order: codes; of 5-bit codes the fifth bits, 32 a cell (int32, bit = dim);
the scales d; the minima m, where the type has them (float16 [32 cells] each). That is as many bytes as ggml's blocks.
Codes of 8 bits are bytes, K [dim][cell] and V [cell][dim]. Codes of 4 bits share a byte with that of the same cell 16
dims further, in its high half: K is [dim mod 16][cell], V is [cell][dim mod 16]. So every byte belongs to one cell, and
threads may write neighbouring cells at once. A head has such a region for each 32 of its values, one after the other.

A value is d * code + m in one rounding, where code and d are exact: every reader gets the same float32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from llmkit.simd import emitter as em
from llmkit.simd.loop import emit_loop
from llmkit.simd.vector import operation

Value = Any
i64, void = types.int64, types.void
_HALVES = (0, 16)
_LANES = range(16)


class CellFormat:
    """A type's codes: 4, 5 or 8 bits. has_min: d * q + m, not d * (q - zero). values: what 4-bit codes stand for."""

    def __init__(self, n_bits: int, *, has_min: bool = False, values: tuple[int, ...] = ()) -> None:
        self.n_bits, self.has_min, self.values = n_bits, has_min, values
        self.zero = 1 << (n_bits - 1)
        self.high = 1024 if n_bits == 8 else 512  # offset of the fifth bits
        self.d = self.high + (128 if n_bits == 5 else 0)
        self.m = self.d + 64
        self.n_bytes = self.m + (64 if has_min else 0)
        self.cell_bytes = self.high // 32

    # -- reading --------------------------------------------------------------------------------------------------

    def scales(self, e: em.Emitter, d: Value, m: Value) -> tuple[Value, Value | None]:
        """What a code is multiplied by, and what is added to the product."""
        if self.has_min:
            return d, m
        if self.values or self.n_bits == 8:
            return d, None
        return d, e.b.fmul(d, e.const(em.F32X16, -float(self.zero)))

    def codes(self, e: em.Emitter, packed: Value, fifth: tuple[Value, Value] | None) -> tuple[Value, Value]:
        """Int32 codes of 16 bytes' low and high halves; fifth: lanes that are not 0 where the bit is set."""
        if self.values:
            return self._looked_up(e, packed)
        wide = e.b.zext(packed, em.I32X16)
        parts = [e.b.and_(wide, e.const(em.I32X16, 15)), e.b.lshr(wide, e.const(em.I32X16, 4))]
        if fifth is not None:
            zero, bit = e.const(em.I32X16, 0), e.const(em.I32X16, 16)
            for i, lanes in enumerate(fifth):
                parts[i] = e.b.or_(parts[i], e.b.select(e.b.icmp_signed("!=", lanes, zero), bit, zero))
        return parts[0], parts[1]

    def _looked_up(self, e: em.Emitter, packed: Value) -> tuple[Value, Value]:
        low = e.b.and_(packed, e.const(em.I8X16, 15))
        high = e.b.lshr(packed, e.const(em.I8X16, 4))
        both = e.b.shuffle_vector(low, high, ir.Constant(ir.VectorType(em.I32, 64), [*range(32)] * 2))
        found = e.lookup16(both, [value & 255 for value in self.values])
        parts = [e.b.shuffle_vector(found, found, ir.Constant(em.I32X16, list(range(i, i + 16)))) for i in _HALVES]
        return e.b.sext(parts[0], em.I32X16), e.b.sext(parts[1], em.I32X16)

    def value(self, e: em.Emitter, code: Value, scales: tuple[Value, Value | None]) -> Value:
        d, m = scales
        number = e.to_float(code)
        return e.b.fmul(number, d) if m is None else e.fma(number, d, m)


def _regions(e: em.Emitter, fmt: CellFormat, head: Value, n_dims: Value, body: Any) -> None:
    """body(region, i) for each 32 values of a head: the region's address and its number."""

    def step(i: Value, _state: list[Value]) -> list[Value]:
        body(e.b.add(head, e.b.mul(i, em.I64(fmt.n_bytes))), i)
        return []

    emit_loop(e.b, e.b.sdiv(n_dims, em.I64(32)), [], step)


def _load_k_half(e: em.Emitter, fmt: CellFormat, region: Value, tile: Value, half: int) -> None:
    """K of cells half .. half + 16 into columns of the tile."""
    m = e.load_f16(region, fmt.m + 2 * half) if fmt.has_min else None
    scales = fmt.scales(e, e.load_f16(region, fmt.d + 2 * half), m)
    high = e.load(em.I32X16, region, fmt.high + 4 * half) if fmt.n_bits == 5 else None
    if fmt.n_bits == 8:
        for d in range(32):
            code = e.b.sext(e.load(em.I8X16, region, 32 * d + half), em.I32X16)
            e.store(fmt.value(e, code, scales), tile, 128 * d + 4 * half)
        return
    for d in range(16):
        fifth = None
        if high is not None:
            bits = [e.const(em.I32X16, 1 << i) for i in (d, d + 16)]
            fifth = (e.b.and_(high, bits[0]), e.b.and_(high, bits[1]))
        for i, code in enumerate(fmt.codes(e, e.load(em.I8X16, region, 32 * d + half), fifth)):
            e.store(fmt.value(e, code, scales), tile, 128 * (d + 16 * i) + 4 * half)


def load_k_operation(fmt: CellFormat) -> Any:
    """`(head, n_dims, target)`: all 32 cells of a head as float32 [n_dims][32]."""

    @operation(void, i64, i64, i64)
    def load_k(e: em.Emitter, head: Value, n_dims: Value, target: Value) -> None:
        def region(at: Value, i: Value) -> None:
            tile = e.b.add(target, e.b.mul(i, em.I64(128 * 32)))
            for half in _HALVES:
                _load_k_half(e, fmt, at, tile, half)

        _regions(e, fmt, head, n_dims, region)

    return load_k


def _load_v_cell(e: em.Emitter, fmt: CellFormat, region: Value, cell: Value, row: Value) -> None:
    """32 values of one cell's V."""

    def f16(offset: int) -> Value:
        at = e.b.add(region, e.b.mul(cell, em.I64(2)))
        return e.f16_to_f32(e.splat(e.load(em.I16, at, offset)))

    codes_at = e.b.add(region, e.b.mul(cell, em.I64(fmt.cell_bytes)))
    scales = fmt.scales(e, f16(fmt.d), f16(fmt.m) if fmt.has_min else None)
    if fmt.n_bits == 8:
        codes = tuple(e.b.sext(e.load(em.I8X16, codes_at, half), em.I32X16) for half in _HALVES)
    else:
        fifth = None
        if fmt.n_bits == 5:
            high = e.load_splat(em.I32, e.b.add(region, e.b.mul(cell, em.I64(4))), fmt.high)
            bits = [ir.Constant(em.I32X16, [1 << (lane + half) for lane in _LANES]) for half in _HALVES]
            fifth = (e.b.and_(high, bits[0]), e.b.and_(high, bits[1]))
        codes = fmt.codes(e, e.load(em.I8X16, codes_at), fifth)
    for half, code in zip(_HALVES, codes, strict=True):
        e.store(fmt.value(e, code, scales), row, 4 * half)


def load_v_operation(fmt: CellFormat) -> Any:
    """`(head, n_dims, first, n, target)`: V of n cells from `first` on as float32 [n][n_dims]."""

    @operation(void, *[i64] * 5)
    def load_v(e: em.Emitter, head: Value, n_dims: Value, first: Value, n: Value, target: Value) -> None:
        def region(at: Value, i: Value) -> None:
            column = e.b.add(target, e.b.mul(i, em.I64(128)))

            def cell(t: Value, _state: list[Value]) -> list[Value]:
                row = e.b.add(column, e.b.mul(e.b.mul(t, n_dims), em.I64(4)))
                _load_v_cell(e, fmt, at, e.b.add(first, t), row)
                return []

            emit_loop(e.b, n, [], cell)

        _regions(e, fmt, head, n_dims, region)

    return load_v
