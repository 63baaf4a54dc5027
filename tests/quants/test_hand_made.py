"""A block of each tensor type set by hand, bit by bit as ggml-common.h lays it out, and the values it must hold."""

import struct

import numpy as np
import pytest

from llmkit.files.ggml_types import GGML_TYPES, TYPE_IDS
from tests.kernels.harness import Floats, aligned
from tests.kernels.weights import Weights, decode
from tests.make_blocks import TYPES
from tests.reference import act_block_size


def half(value: float) -> bytes:
    return struct.pack("<e", value)


def u16(value: int) -> bytes:
    return struct.pack("<H", value)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


# Type: bytes at offsets of a block that is 0 elsewhere; values at some columns.
BLOCKS: dict[str, tuple[dict[int, bytes], dict[int, float]]] = {
    "F32": ({0: struct.pack("<f", -1.5)}, {0: -1.5}),
    "F16": ({0: half(-1.5)}, {0: -1.5}),
    "BF16": ({0: b"\xc0\xbf"}, {0: -1.5}),
    "Q4_0": ({0: half(2.0), 2: b"\x1f"}, {0: 14, 16: -14, 1: -16}),
    "Q4_1": ({0: half(2.0), 2: half(-1.0), 7: b"\x52"}, {3: 3, 19: 9, 0: -1}),
    "Q5_0": ({0: half(0.5), 2: u32(1 | 1 << 17), 6: b"\x03\xf0"}, {0: 1.5, 16: -8, 1: -8, 17: 7.5}),
    "Q5_1": ({0: half(0.5), 2: half(4.0), 4: u32(1 | 1 << 17), 8: b"\x03\xf0"}, {0: 13.5, 16: 4, 1: 4, 17: 19.5}),
    "Q8_0": ({0: half(0.25), 2: b"\x80", 33: b"\x7f"}, {0: -32, 1: 0, 31: 31.75}),
    "Q2_K": (
        {
            0: b"\x23",
            2: b"\x01",
            4: b"\x10",
            6: b"\x0f",
            15: b"\x21",
            16: b"\xe4",
            79: b"\x80",
            80: half(2),
            82: half(0.5),
        },
        {0: -1, 32: 2, 64: -0.5, 96: 90, 255: 2 * 1 * 2 - 1},
    ),
    "Q3_K": (
        {0: b"\x01", 31: b"\x80", 32: b"\x02", 95: b"\x40", 96: b"\x05", 103: b"\xf0\x03", 107: b"\xc0", 108: half(2)},
        {0: 2 * 21 * 2, 1: 2 * 21 * -4, 16: 2 * -32 * -4, 255: 2 * 31 * 1},
    ),
    "Q4_K": (
        {0: half(1), 2: half(2), 4: b"\x85\x02", 8: b"\x43", 12: b"\x21", 16: b"\xa7", 80: b"\x0c"},
        {0: 5 * 7 - 2 * 3, 1: -6, 32: 2 * 10, 128: 33 * 12 - 2 * 18},
    ),
    "Q5_K": (
        {0: half(1), 2: half(2), 4: b"\x85", 8: b"\x43", 12: b"\x21", 16: b"\x11", 48: b"\x07"},
        {0: 5 * 23 - 2 * 3, 1: -6, 128: 33 * 16 - 2 * 18},
    ),
    "Q6_K": (
        {0: b"\x0f", 32: b"\x50", 128: b"\xc1", 192: b"\xfe\x00\x01", 198: b"\x03", 208: half(0.5)},
        {0: 0.5 * -2 * -1, 32: 0.5 * -32, 96: 0.5 * 3 * 21},
    ),
    "IQ4_NL": ({0: half(0.5), 2: b"\x8f"}, {0: 56.5, 16: 0.5, 1: -63.5}),
    "IQ4_XS": (
        {0: half(0.5), 2: u16(0b1011), 4: b"\x21", 8: b"\x0f", 24: b"\x08"},
        {0: 0.5 * 17 * 113, 16: 0.5 * 17 * -127, 32: 0.5 * 2 * 1, 64: 0.5 * -32 * -127},
    ),
    "MXFP4": ({0: b"\x80", 1: b"\xf7\x81"}, {0: 12, 16: -12, 1: 1, 17: 0}),
    "NVFP4": (
        {0: b"\x38\x01\x7f\x7e", 4: b"\xf7", 12: b"\x01", 20: b"\x07", 28: b"\x02"},
        {0: 6, 8: -6, 16: 2.0**-10, 32: 0, 48: 448},
    ),
    "Q1_0": ({0: half(1.5), 2: b"\x02", 17: b"\x80"}, {0: -1.5, 1: 1.5, 126: -1.5, 127: 1.5}),
    "Q2_0": ({0: half(1.5), 2: b"\xe4", 17: b"\x80"}, {0: -1.5, 1: 0, 2: 1.5, 3: 3, 62: -1.5, 63: 1.5}),
    "TQ1_0": (  # digits 2 1 0 0 1 and 0 2 1 2, as fractions of 256 rounded up
        {0: b"\xc9", 48: b"\x49", 52: half(2)},
        {0: 2, 32: 0, 64: -2, 96: -2, 128: 0, 240: -2, 244: 2, 248: 0, 252: 2},
    ),
    "TQ2_0": ({0: b"\x24", 63: b"\x80", 64: half(2)}, {0: -2, 32: 0, 64: 2, 96: -2, 255: 2}),
    # Patterns 0 hold the smallest magnitudes (IQ1: -1); patterns 1 differ from them in the first value.
    "IQ2_XXS": ({0: half(2), 2: b"\x01", 6: u32(1 | 3 << 28)}, {0: -43 * 1.75, 1: 14, 7: -14, 8: 14, 32: 8 * 0.25}),
    "IQ2_XS": ({0: half(2), 2: u16(1 | 1 << 9), 66: b"\x13"}, {0: -43 * 1.75, 1: 14, 7: -14, 16: 8 * 0.75}),
    "IQ2_S": ({0: half(2), 2: b"\x01", 34: b"\x81", 74: b"\x13"}, {0: -43 * 1.75, 1: 14, 7: -14, 16: 8 * 0.75}),
    "IQ3_XXS": ({0: half(2), 2: b"\x01", 66: u32(1 | 3 << 28)}, {0: -20 * 3.5, 1: 14, 7: -14, 32: 4 * 0.5}),
    "IQ3_S": ({0: half(2), 2: b"\x01", 74: b"\x21", 106: b"\x13"}, {0: -3 * 14, 1: 14, 5: -14, 32: 1 * 6}),
    "IQ1_S": ({0: half(2), 2: b"\x01", 34: u16(0x8000 | 3 << 12)}, {0: 14 * 0.875, 1: 14 * -1.125, 32: 2 * -0.875}),
    "IQ1_M": (
        {0: b"\x01", 32: b"\x08", 48: u16(3), 54: u16(0x4000)},
        {0: 14 * 0.875, 1: 14 * -1.125, 8: 14 * -0.875, 16: 2 * -0.875},
    ),
}


def block_of(kind: str) -> Weights:
    """One row: the hand-made block, then blocks of zero bytes where the activations need a longer row."""
    type = GGML_TYPES[TYPE_IDS[kind]]
    n_cols = max(type.block_size, act_block_size(type.id) or 32)
    raw = np.zeros((1, n_cols // type.block_size * type.type_size), np.uint8)
    for offset, values in BLOCKS[kind][0].items():
        raw[0, offset : offset + len(values)] = np.frombuffer(values, np.uint8)
    return Weights(kind, 1, n_cols, raw)


def test_every_type_has_a_block() -> None:
    assert set(BLOCKS) == set(TYPES)


@pytest.mark.parametrize("kind", TYPES)
def test_decoded_values(kind: str) -> None:
    values = decode(block_of(kind))[0]
    assert {column: values[column] for column in BLOCKS[kind][1]} == BLOCKS[kind][1]


@pytest.mark.parametrize("kind", TYPES)
def test_product_with_each_unit_vector_is_the_decoded_value(kind: str) -> None:
    """Every column lies where the tile reads it."""
    weights = block_of(kind)
    units: Floats = aligned(np.eye(weights.n_cols, dtype=np.float32))
    np.testing.assert_allclose(weights.times(units)[:, 0], decode(weights)[0], rtol=2e-6, atol=1e-6)


def test_the_smallest_and_the_largest_scales_of_mxfp4() -> None:
    for exponent, scale in ((0, 2.0**-128), (1, 2.0**-127), (2, 2.0**-126), (254, 2.0**126), (255, 2.0**127)):
        raw = np.zeros((1, 17), np.uint8)
        raw[0, :2] = exponent, 0x01
        assert decode(Weights("MXFP4", 1, 32, raw))[0, 0] == np.float32(scale)
