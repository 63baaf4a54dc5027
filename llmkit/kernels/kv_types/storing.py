"""Quantises a token's K or V of one head into its cell: the layout of `quantised`, the codes of `quantisers`."""

from __future__ import annotations

from typing import Any

from numba import types

from llmkit.kernels.kv_types.quantised import CellFormat
from llmkit.kernels.kv_types.quantisers import quantise
from llmkit.simd import emitter as em
from llmkit.simd.loop import emit_loop
from llmkit.simd.vector import operation

Value = Any
i64, void = types.int64, types.void


def store_operation(fmt: CellFormat, is_k: bool) -> Any:
    """`(head, n_dims, cell, source)`: n_dims float32 (a multiple of 32) into a cell."""

    @operation(void, *[i64] * 4)
    def store(e: em.Emitter, head: Value, n_dims: Value, cell: Value, source: Value) -> None:
        def step(i: Value, _state: list[Value]) -> list[Value]:
            region = e.b.add(head, e.b.mul(i, em.I64(fmt.n_bytes)))
            _store_region(e, fmt, is_k, region, cell, e.b.add(source, e.b.mul(i, em.I64(128))))
            return []

        emit_loop(e.b, e.b.sdiv(n_dims, em.I64(32)), [], step)

    return store


def _store_region(e: em.Emitter, fmt: CellFormat, is_k: bool, region: Value, cell: Value, source: Value) -> None:
    """32 values into a cell of a region."""
    d, m, codes = quantise(e, fmt, source)
    scale_at = e.b.add(region, e.b.mul(cell, em.I64(2)))
    for value, offset in ((d, fmt.d), (m, fmt.m)):
        if value is not None:
            e.store(e.b.extract_element(e.f32_to_f16(e.splat(value)), em.I32(0)), scale_at, offset)
    if fmt.n_bits == 5:
        e.store(_fifth_bits(e, codes), e.b.add(region, e.b.mul(cell, em.I64(4))), fmt.high)
    first = cell if is_k else e.b.mul(cell, em.I64(fmt.cell_bytes))
    step = 32 if is_k else 1
    for i, codes16 in enumerate(_packed(e, fmt, codes)):
        _store_bytes(e, codes16, e.b.add(region, first), 16 * i * step, step)


def _packed(e: em.Emitter, fmt: CellFormat, codes: tuple[Value, Value]) -> list[Value]:
    """Codes as vectors of 16 bytes, in the order of dims (8 bits), or two dims a byte."""
    if fmt.n_bits == 8:
        return [e.b.trunc(part, em.I8X16) for part in codes]
    low = e.b.and_(codes[0], e.const(em.I32X16, 15))
    return [e.b.trunc(e.b.or_(low, e.b.shl(codes[1], e.const(em.I32X16, 4))), em.I8X16)]


def _fifth_bits(e: em.Emitter, codes: tuple[Value, Value]) -> Value:
    """Bit 4 of 32 codes, bit i of code i."""
    zero, bit = e.const(em.I32X16, 0), e.const(em.I32X16, 16)
    low, high = (
        e.b.zext(e.b.bitcast(e.b.icmp_signed("!=", e.b.and_(part, bit), zero), em.I16), em.I32) for part in codes
    )
    return e.b.or_(low, e.b.shl(high, em.I32(16)))


def _store_bytes(e: em.Emitter, values: Value, address: Value, offset: int, step: int) -> None:
    """16 bytes, `step` bytes apart."""
    if step == 1:
        e.store(values, address, offset)
        return
    for i in range(16):
        e.store(e.b.extract_element(values, em.I32(i)), address, offset + step * i)
