"""float32 blocks to a tensor type's bytes, the slow way: NumPy, a block at a time, without importance.

Owns the types whose rule is one formula. Scales and sums are float32, as llama.cpp's; a scale of 0 gives codes of 0.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Encoder = Callable[[Floats], bytes]


def inverse(d: np.float32) -> np.float32:
    return np.float32(1) / d if d != 0 else np.float32(0)


def half(value: np.float32) -> bytes:
    return np.float16(value).tobytes()


def away(x: Floats) -> NDArray[np.int64]:
    """C's roundf: halves away from zero."""
    return (np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5)).astype(np.int64)


def largest(x: Floats) -> np.float32:
    """The first value of largest magnitude; 0, without a sign, where all are 0."""
    value: np.float32 = x[np.argmax(np.abs(x))]
    return value if value else np.float32(0)


def nibbles(q: NDArray[np.int64]) -> bytes:
    return (q[:16] & 15 | (q[16:] & 15) << 4).astype(np.uint8).tobytes()


def fifth_bits(q: NDArray[np.int64]) -> bytes:
    return np.packbits(q >> 4 & 1, bitorder="little").tobytes()


def signed_codes(x: Floats, n_max: int) -> tuple[bytes, NDArray[np.int64]]:
    d = largest(x) / np.float32(-n_max)
    return half(d), np.minimum((x * inverse(d) + np.float32(n_max + 0.5)).astype(np.int64), 2 * n_max - 1)


def codes_above(x: Floats, n_max: int) -> tuple[bytes, NDArray[np.int64]]:
    low, high = x[np.argmin(x)], x[np.argmax(x)]
    d = (high - low) / np.float32(n_max)
    return half(d) + half(low), np.minimum(((x - low) * inverse(d) + np.float32(0.5)).astype(np.int64), n_max)


def q4_0(x: Floats) -> bytes:
    head, q = signed_codes(x, 8)
    return head + nibbles(q)


def q4_1(x: Floats) -> bytes:
    head, q = codes_above(x, 15)
    return head + nibbles(q)


def q5_0(x: Floats) -> bytes:
    head, q = signed_codes(x, 16)
    return head + fifth_bits(q) + nibbles(q)


def q5_1(x: Floats) -> bytes:
    head, q = codes_above(x, 31)
    return head + fifth_bits(q) + nibbles(q)


def q8_0(x: Floats) -> bytes:
    d = np.abs(x).max() / np.float32(127)
    return half(d) + away(x * inverse(d)).astype(np.int8).tobytes()


def ternary(x: Floats) -> tuple[bytes, NDArray[np.int64]]:
    d = np.abs(x).max()
    return half(d), away(x * inverse(d)) + 1


def tq1_0(x: Floats) -> bytes:
    head, q = ternary(x)
    parts = q[:160].reshape(5, 32), q[160:240].reshape(5, 16), np.vstack([q[240:].reshape(4, 4), np.zeros((1, 4), int)])
    numbers = np.concatenate([3 ** np.arange(4, -1, -1) @ part for part in parts])
    return bytes(-(-int(n) * 256 // 243) for n in numbers) + head


def tq2_0(x: Floats) -> bytes:
    head, q = ternary(x)
    pairs = q.reshape(2, 4, 32)
    return (pairs * np.array([1, 4, 16, 64])[:, None]).sum(axis=1).astype(np.uint8).tobytes() + head


def q1_0(x: Floats) -> bytes:
    total = np.float32(0)
    for value in x:
        total += abs(value)
    return half(total / np.float32(128)) + np.packbits(x >= 0, bitorder="little").tobytes()


def q2_0(x: Floats) -> bytes:
    d = np.abs(x).max()
    q = np.clip(away(x * inverse(d)) + 1, 0, 3).reshape(16, 4)
    return half(d) + (q * np.array([1, 4, 16, 64])).sum(axis=1).astype(np.uint8).tobytes()


def bf16(x: Floats) -> bytes:
    bits = x.view(np.uint32).astype(np.uint64)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16).tobytes()


# Type: columns of a block, what encodes one.
ENCODERS: dict[str, tuple[int, Encoder]] = {
    "F32": (16, lambda x: x.tobytes()),
    "F16": (16, lambda x: x.astype(np.float16).tobytes()),
    "BF16": (16, bf16),
    "Q4_0": (32, q4_0),
    "Q4_1": (32, q4_1),
    "Q5_0": (32, q5_0),
    "Q5_1": (32, q5_1),
    "Q8_0": (32, q8_0),
    "TQ1_0": (256, tq1_0),
    "TQ2_0": (256, tq2_0),
    "Q1_0": (128, q1_0),
    "Q2_0": (64, q2_0),
}


def quantize(name: str, rows: Floats) -> Bytes:
    """rows float32 [n_rows, n_cols] -> uint8 [n_rows, row_bytes]."""
    block, encode = ENCODERS[name]
    with np.errstate(all="ignore"):
        raw = b"".join(encode(x) for x in np.ascontiguousarray(rows, np.float32).reshape(-1, block))
    return np.frombuffer(raw, np.uint8).reshape(len(rows), -1)
