"""Codes, one a byte and in order, into the bit fields of 256-column types. Eight codes move as one int64."""

from __future__ import annotations

from llmkit.kernels.jit import helper
from llmkit.simd.ops import load_i64, store_i64

_PAIR, _BIT = 0x0303030303030303, 0x0101010101010101


@helper
def pack_pairs_256(codes, target):
    """The low two bits of 256 codes: byte 32 j + i has values 128 j + i, + 32, + 64, + 96."""
    for i in range(8):
        at, packed = codes + 128 * (i >> 2) + 8 * (i & 3), 0
        for part in range(4):
            packed |= (load_i64(at + 32 * part) & _PAIR) << 2 * part
        store_i64(target + 8 * i, packed)


@helper
def pack_bits_256(codes, bit, target):
    """One bit of 256 codes: bit p of byte i is that of value 32 p + i."""
    for i in range(4):
        packed = 0
        for part in range(8):
            packed |= ((load_i64(codes + 32 * part + 8 * i) >> bit) & _BIT) << part
        store_i64(target + 8 * i, packed)
