"""KV types, the slow way: how a token's K or V of one head is rounded, and where each byte of a cell lies in a block.

Owns the rounding of each type in plain loops and NumPy, written from ggml's reference quantisers, and the layouts of
docs/kernels.md. Knows no attention.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.reference.ops import Array

CELLS = 32
IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
FLOATS = ("f32", "f16", "bf16")
QUANTISED = {"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}  # bytes of 32 values
TYPES = (*FLOATS, *QUANTISED)
Bytes = NDArray[np.uint8]
_f32 = np.float32


@dataclass
class Quantised:
    """32 values: codes as they are stored, scale and minimum as float16."""

    codes: NDArray[np.int64]
    d: np.float16
    m: np.float16 | None = None


def head_bytes(name: str, n_dims: int) -> int:
    """Bytes of 32 cells of one head."""
    return CELLS * n_dims * QUANTISED[name] // 32 if name in QUANTISED else CELLS * n_dims * (4 if name == "f32" else 2)


# -- rounding -----------------------------------------------------------------------------------------------------


def to_bf16(x: Array) -> NDArray[np.uint16]:
    """Nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.int64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _fma(a: Array, b: np.float32, c: float) -> Array:
    """a * b + c of float32 numbers, rounded once (or, once in 10^8, twice)."""
    return (a.astype(np.float64) * np.float64(b) + c).astype(np.float32)


def _inverse(d: np.float32) -> np.float32:
    return _f32(1) / d if d else _f32(0)


def quantise(name: str, x: Array) -> Quantised:
    """32 float32 values, as ggml's quantize_row_*_ref does."""
    x = np.asarray(x, np.float32)
    largest = x[np.argmax(np.abs(x))]  # the first of them
    if name == "q8_0":
        d = np.abs(largest) / _f32(127)
        scaled = (x * _inverse(d)).astype(np.float64)
        return Quantised((np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)).astype(np.int64), np.float16(d))
    if name == "iq4_nl":
        return _quantise_iq4_nl(x, largest)
    zero = 16 if name[1] == "5" else 8
    if name.endswith("_0"):
        d = largest / _f32(-zero)
        codes = np.minimum(np.trunc(_fma(x, _inverse(d), zero + 0.5)), 2 * zero - 1)
        return Quantised(codes.astype(np.int64), np.float16(d))
    m, last = x.min(), 2 * zero - 1
    d = (x.max() - m) / _f32(last)
    codes = np.minimum(np.trunc(_fma(x - m, _inverse(d), 0.5)), last)
    return Quantised(codes.astype(np.int64), np.float16(d), np.float16(m))


def _quantise_iq4_nl(x: Array, largest: np.float32) -> Quantised:
    if np.abs(largest) < 1e-15:
        return Quantised(np.zeros(32, np.int64), np.float16(0))
    scaled = x * (_f32(1) / (largest / IQ4_NL[0]))
    codes = np.zeros(32, np.int64)
    for i, value in enumerate(scaled):
        upper = int(np.clip(np.searchsorted(IQ4_NL, value, "right"), 1, 15))
        codes[i] = upper - 1 if value - IQ4_NL[upper - 1] < IQ4_NL[upper] - value else upper
    product, square = _f32(0), _f32(0)
    for value, entry in zip(x, IQ4_NL[codes], strict=True):
        weighted = value * value * entry
        product += weighted * value
        square += weighted * entry
    return Quantised(codes, np.float16(product / square))


def dequantise(name: str, q: Quantised) -> Array:
    """32 float32 values."""
    d = np.float32(q.d)
    if q.m is not None:
        return _fma(q.codes.astype(np.float32), d, float(q.m))
    if name == "iq4_nl":
        return np.asarray(IQ4_NL[q.codes] * d)
    zero = {"q8_0": 0, "q5_0": 16, "q4_0": 8}[name]
    return np.asarray((q.codes - zero).astype(np.float32) * d)


def rounded(name: str, x: Array) -> Array:
    """x [..., n_dims] as a cache of this type gives it back."""
    x = np.asarray(x, np.float32)
    if name == "bf16":
        return from_bf16(to_bf16(x))
    if name in FLOATS:
        return x.astype(np.float32 if name == "f32" else np.float16).astype(np.float32)
    groups = [dequantise(name, quantise(name, group)) for group in x.reshape(-1, 32)]
    return np.array(groups, np.float32).reshape(x.shape)


def hadamard(x: Array, size: int) -> Array:
    """The orthonormal Walsh-Hadamard transform of `size` values at a time: sums and differences 1, 2, 4 ... apart."""
    y = np.asarray(x, np.float32).reshape(-1, size).copy()
    step = 1
    while step < size:
        pairs = y.reshape(-1, size // (2 * step), 2, step)
        y = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(-1, size)
        step *= 2
    return np.asarray((y * _f32(1 / np.sqrt(size))).reshape(np.shape(x)))


# -- layout -------------------------------------------------------------------------------------------------------


def put(head: Bytes, name: str, is_k: bool, cell: int, x: Array) -> None:
    """Writes a cell's values [n_dims] into the bytes of one head of a block (head_bytes of them)."""
    if name in FLOATS:
        values = to_bf16(x) if name == "bf16" else np.asarray(x, np.float32 if name == "f32" else np.float16)
        cells = head.view(values.dtype)
        (cells.reshape(-1, CELLS).T if is_k else cells.reshape(CELLS, -1))[cell] = values
        return
    regions = head.reshape(-1, CELLS * QUANTISED[name])
    for region, group in zip(regions, np.asarray(x, np.float32).reshape(-1, 32), strict=True):
        _put_region(region, name, is_k, cell, quantise(name, group))


def _put_region(region: Bytes, name: str, is_k: bool, cell: int, q: Quantised) -> None:
    """32 values of one cell: codes, then fifth bits, scales and minima."""
    packed = (q.codes & 255 if name == "q8_0" else (q.codes[:16] & 15) | (q.codes[16:] & 15) << 4).astype(np.uint8)
    n = CELLS * len(packed)
    codes = region[:n].reshape(-1, CELLS).T if is_k else region[:n].reshape(CELLS, -1)
    codes[cell] = packed
    if name[1] == "5":
        bits = sum(int(code >> 4) << i for i, code in enumerate(q.codes))
        region[n : n + 128].view(np.uint32)[cell] = bits
        n += 128
    region[n : n + 64].view(np.float16)[cell] = q.d
    if q.m is not None:
        region[n + 64 : n + 128].view(np.float16)[cell] = q.m


def get(head: Bytes, name: str, cell: int, n_dims: int) -> Array:
    """A cell's K [n_dims] out of the bytes of one head of a block, as float32."""
    if name in FLOATS:
        values = head.view({"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[name]).reshape(n_dims, CELLS)[
            :, cell
        ]
        return from_bf16(values) if name == "bf16" else values.astype(np.float32)
    return np.concatenate([_get_region(region, name, cell) for region in head.reshape(n_dims // 32, -1)])


def _get_region(region: Bytes, name: str, cell: int) -> Array:
    """32 values of q8_0, q4_0, q5_0 and their like."""
    n_codes = 32 if name == "q8_0" else 16
    packed, n = region[: CELLS * n_codes].reshape(n_codes, CELLS)[:, cell].astype(np.int64), CELLS * n_codes
    codes = (
        packed.astype(np.uint8).view(np.int8).astype(np.int64)
        if name == "q8_0"
        else np.concatenate([packed & 15, packed >> 4])
    )
    if name[1] == "5":
        bits = int(region[n : n + 128].view(np.uint32)[cell])
        codes, n = codes | np.array([(bits >> i & 1) << 4 for i in range(32)]), n + 128
    d = region[n : n + 64].view(np.float16)[cell]
    m = region[n + 64 : n + 128].view(np.float16)[cell] if name.endswith("_1") else None
    return dequantise(name, Quantised(codes, d, m))
