"""Codes of the IQ2 and IQ3 types: an index of a magnitude, and above it the sign."""

from __future__ import annotations

import numpy as np

from llmkit.kernels.jit import helper
from llmkit.quants.planes import Planes, spread_bits, spread_nibbles, spread_pairs
from llmkit.simd.ops import store_i32, store_i64

IQ2_VALUES = (8, 25, 43, 0, -8, -25, -43, 0)
IQ2_PLANES = Planes(3, [value + 64 for value in IQ2_VALUES])
IQ2_TABLE = np.array(IQ2_VALUES, np.int8)


@helper
def signs_of_7(bits):
    """8 sign bits of 7: the number of minus signs is even."""
    parity = bits ^ bits >> 4
    parity ^= parity >> 2
    return bits | ((parity ^ parity >> 1) & 1) << 7


@helper
def store_iq2_codes(entry, signs, codes):
    """8 codes of 3 bits from a grid's entry and 8 sign bits."""
    store_i64(codes, spread_pairs(entry) | spread_bits(signs) << 2)


@helper
def store_iq3_codes(entry, signs, codes):
    """4 codes of 4 bits from a grid's entry and the lowest 4 sign bits."""
    store_i32(codes, spread_nibbles(entry) | (spread_bits(signs & 15) << 3))
