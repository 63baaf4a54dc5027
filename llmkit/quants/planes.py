"""Codes of 1 to 4 bits in tiles: how a block's codes are packed, and how 32 columns of 16 rows become bytes again.

Bit fields of several groups share a 64-byte vector; as everywhere, byte 4r+j of a group's vector is column 4g+j of row
r. 32 columns take, one after the other: 4 bits: groups 0..3, groups 4..7 in the high halves. 3 bits: the lower 2 as
below, then the upper 1. 2 bits: a vector of groups 0..3 and one of groups 4..7, group g at bit 2 (g mod 4).
1 bit: one vector, group g at bit g.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from llmkit.kernels.jit import helper
from llmkit.quants.tile import nibble_codes
from llmkit.simd import emitter as em
from llmkit.simd.ops import load_i32, store_i32
from llmkit.simd.vector import operation

Value = Any
Reader = Callable[[int], Value]


class Planes:
    """Codes of `n_bits`. As bytes they are entries of `values`, which repeat up to 16, or the codes shifted by `lift`.

    small: every byte is below 128 (what Emitter.dot_bytes asks).
    """

    def __init__(self, n_bits: int, values: Sequence[int] | None = None, lift: int = 0) -> None:
        self.n_bits, self.n_bytes, self._lift = n_bits, 64 * n_bits, lift
        self._table = None if values is None else [values[i % len(values)] for i in range(16)]
        self.small = max(self._table or [(1 << n_bits) - 1 << lift]) < 128

    def reader(self, e: em.Emitter, w: Value) -> Reader:
        """Of 32 columns at `w`: a function from group 0..7 to 64 bytes."""
        fields, table = self._fields(e, w), self._table
        return fields if table is None else lambda group: e.lookup16(fields(group), table)

    def _fields(self, e: em.Emitter, w: Value) -> Reader:
        if self.n_bits == 4:
            return lambda group: nibble_codes(e, w, group)
        planes = [e.load(em.I8X64, w, 64 * i) for i in range(self.n_bits)]
        if self.n_bits == 1:
            return lambda group: _field(e, planes[0], group, 1, self._lift)
        if self.n_bits == 2:
            return lambda group: _field(e, planes[group // 4], 2 * (group % 4), 2, self._lift)
        return lambda group: e.b.or_(
            _field(e, planes[group // 4], 2 * (group % 4), 2, 0), _field(e, planes[2], group, 1, 2)
        )


def _field(e: em.Emitter, plane: Value, at: int, n_bits: int, to: int) -> Value:
    """Bits `at`.. of each byte, moved to bit `to`."""
    return e.and_bytes(e.shift_bytes(plane, to - at), ((1 << n_bits) - 1) << to)


@operation(types.int64)
def codes_buffer(e: em.Emitter) -> Value:
    """The address of 256 bytes of the stack: one code a byte, column after column."""
    with e.b.goto_entry_block():
        return e.b.ptrtoint(e.b.alloca(ir.ArrayType(em.I8, 256)), em.I64)


# Packing: 32 codes (bytes) of one row into the tile's bytes at `target`. Four columns of a group move as one int32.


@helper
def pack_1(codes, target, row):
    bits = 0
    for group in range(8):
        bits |= (load_i32(codes + 4 * group) & 0x01010101) << group
    store_i32(target + 4 * row, bits)


@helper
def pack_2(codes, target, row):
    """The lower 2 bits of the codes."""
    for half in range(2):
        bits = 0
        for group in range(4):
            bits |= (load_i32(codes + 16 * half + 4 * group) & 0x03030303) << (2 * group)
        store_i32(target + 64 * half + 4 * row, bits)


@helper
def pack_3(codes, target, row):
    pack_2(codes, target, row)
    bits = 0
    for group in range(8):
        bits |= ((load_i32(codes + 4 * group) >> 2) & 0x01010101) << group
    store_i32(target + 128 + 4 * row, bits)


@helper
def pack_4(codes, target, row):
    for group in range(4):
        low, high = load_i32(codes + 4 * group), load_i32(codes + 4 * group + 16)
        store_i32(target + 64 * group + 4 * row, low | high << 4)


# Reading the file's bytes: several columns at a time.


@helper
def spread_bits(bits):
    """8 bits into the lowest bits of 8 bytes."""
    wide = np.int64(bits)
    wide = (wide | wide << 28) & 0x0000000F0000000F
    wide = (wide | wide << 14) & 0x0003000300030003
    return (wide | wide << 7) & 0x0101010101010101


@helper
def spread_pairs(pairs):
    """8 pairs of bits into the lowest bits of 8 bytes."""
    wide = np.int64(pairs)
    wide = (wide | wide << 24) & 0x000000FF000000FF
    wide = (wide | wide << 12) & 0x000F000F000F000F
    return (wide | wide << 6) & 0x0303030303030303


@helper
def spread_nibbles(nibbles):
    """4 halves of bytes into the lowest bits of 4 bytes."""
    wide = np.int64(nibbles)
    wide = (wide | wide << 8) & 0x00FF00FF
    return (wide | wide << 4) & 0x0F0F0F0F


@helper
def unpack_nibbles(source, n_bytes, codes):
    """The low halves of n_bytes bytes, then the high halves (the order of Q4_0 and all that follow it)."""
    for i in range(0, n_bytes, 4):
        packed = load_i32(source + i)
        store_i32(codes + i, packed & 0x0F0F0F0F)
        store_i32(codes + n_bytes + i, (packed >> 4) & 0x0F0F0F0F)


@helper
def unpack_pairs_256(source, codes):
    """64 bytes of bit pairs: of each 128 columns, column 32 l + i is pair l of byte i."""
    for half in range(2):
        for pair in range(4):
            for i in range(0, 32, 4):
                packed = load_i32(source + 32 * half + i) >> (2 * pair)
                store_i32(codes + 128 * half + 32 * pair + i, packed & 0x03030303)
