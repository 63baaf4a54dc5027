"""Random weights as the bytes of any tensor type that llmkit runs, for tiny models.

Owns the random blocks. Floats, the types of 4 to 8 bits with 32 values a block, and MXFP4 are quantised by the `gguf`
package, so that a block is what a real file would hold. The others are blocks with random codes and scales, and a d
that gives the wanted spread: wherever every byte is valid, random bytes, and a d of either sign.
"""

import numpy as np
import numpy.typing as npt

from llmkit.files.ggml_types import GGML_TYPES, TYPE_IDS
from llmkit.quants.registry import TYPES as RUN

Bytes = npt.NDArray[np.uint8]

TYPES = tuple(name for name, *_ in RUN.values())
"""The tensor types that llmkit runs, by ggml's names."""

RANDOM_BYTES = {
    "Q3_K": (108, 43.4),
    "IQ2_XXS": (0, 53.4),
    "IQ2_XS": (0, 55.8),
    "IQ2_S": (0, 56.3),
    "IQ3_XXS": (0, 142.6),
    "IQ3_S": (0, 140.2),
    "IQ1_S": (0, 7.20),
    "IQ1_M": (-1, 7.20),
    "IQ4_NL": (0, 67.4),
    "IQ4_XS": (0, 1248.0),
    "TQ1_0": (52, 0.817),
    "TQ2_0": (64, 1.225),
    "Q1_0": (0, 1.0),
    "Q2_0": (0, 1.225),
}
"""Types all of whose bytes may be anything: where d (f16) stands, and the root mean square of the values for d = 1."""


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...], type: str, std: float) -> Bytes:
    """Bytes of a tensor of `shape` (GGUF order) and `type`: values of mean 0 and a deviation of about `std`."""
    n_blocks = int(np.prod(shape)) // GGML_TYPES[TYPE_IDS[type]].block_size
    if type in RANDOM_BYTES:
        return random_bytes(rng, n_blocks, type, std)
    if type in ("Q4_K", "Q5_K"):
        return random_q45_k(rng, n_blocks, type, std)
    if type in ("Q2_K", "Q6_K", "NVFP4"):
        return {"Q2_K": random_q2_k, "Q6_K": random_q6_k, "NVFP4": random_nvfp4}[type](rng, n_blocks, std)
    values = rng.standard_normal(tuple(reversed(shape)), dtype=np.float32) * np.float32(std)
    return quantized(values, type)


def quantized(values: npt.NDArray[np.float32], type: str) -> Bytes:
    """The bytes of `values` (shape in NumPy order, rows last) as `type`, which the `gguf` package can make."""
    if type == "F32":
        return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quantize

    packed = quantize(values, GGMLQuantizationType(TYPE_IDS[type]))
    return np.ascontiguousarray(packed).reshape(-1).view(np.uint8)


def random_q45_k(rng: np.random.Generator, n_blocks: int, type: str, std: float) -> Bytes:
    """Blocks of Q4_K or Q5_K: random codes and scales, minima that put the mean near 0.

    A value is d * scale * code - dmin * minimum (block_q4_K in ggml-common.h): uniform codes of 0 to 15 have the mean
    7.5 and the deviation 4.6, those of 0 to 31 15.5 and 9.2; the scales of 1 to 63 have a root mean square of 36.5.
    """
    mean, deviation = (7.5, 4.61) if type == "Q4_K" else (15.5, 9.23)
    d = std / (deviation * 36.5) * rng.uniform(0.7, 1.3, n_blocks)
    scales = rng.integers(1, 64, (n_blocks, 8), dtype=np.uint8)
    minima = np.clip(scales.astype(np.int64) + rng.integers(-2, 3, (n_blocks, 8)), 0, 63).astype(np.uint8)
    codes = rng.integers(0, 256, (n_blocks, GGML_TYPES[TYPE_IDS[type]].type_size - 16), dtype=np.uint8)
    return np.concatenate([_half(d), _half(d * mean), _pack_scales(scales, minima), codes], axis=1).reshape(-1)


def random_q6_k(rng: np.random.Generator, n_blocks: int, std: float) -> Bytes:
    """Blocks of Q6_K: random codes (-32 to 31, deviation 18.5) and scales (-127 to 127, root mean square 73.3)."""
    d = std / (18.5 * 73.3) * rng.uniform(0.7, 1.3, n_blocks)
    codes = rng.integers(0, 256, (n_blocks, 192), dtype=np.uint8)
    scales = rng.integers(-127, 128, (n_blocks, 16), dtype=np.int8).view(np.uint8)
    return np.concatenate([codes, scales, _half(d)], axis=1).reshape(-1)


def random_q2_k(rng: np.random.Generator, n_blocks: int, std: float) -> Bytes:
    """Blocks of Q2_K: random codes (mean 1.5), minima that are the scales of 1 to 15, and dmin = 1.5 d."""
    d = std / 10.16 * rng.uniform(0.7, 1.3, n_blocks)
    scales = rng.integers(1, 16, (n_blocks, 16), dtype=np.uint8)
    codes = rng.integers(0, 256, (n_blocks, 64), dtype=np.uint8)
    return np.concatenate([scales * np.uint8(17), codes, _half(d), _half(1.5 * d)], axis=1).reshape(-1)


def random_nvfp4(rng: np.random.Generator, n_blocks: int, std: float) -> Bytes:
    """Blocks of NVFP4: random codes (root mean square 5.85), E4M3 scales of twice the size (it halves them)."""
    codes = np.arange(1, 127)
    scales = np.where(codes < 8, codes * 2.0**-9, (8 + codes % 8) * 2.0 ** (codes // 8 - 10.0))
    wanted = 2 * std / 5.85 * rng.uniform(0.7, 1.3, (n_blocks, 4))
    chosen = codes[np.abs(wanted[..., None] - scales).argmin(-1)].astype(np.uint8)
    return np.concatenate([chosen, rng.integers(0, 256, (n_blocks, 32), dtype=np.uint8)], axis=1).reshape(-1)


def random_bytes(rng: np.random.Generator, n_blocks: int, type: str, std: float) -> Bytes:
    """Blocks of one of RANDOM_BYTES."""
    at, size = RANDOM_BYTES[type]
    blocks = rng.integers(0, 256, (n_blocks, GGML_TYPES[TYPE_IDS[type]].type_size), dtype=np.uint8)
    d = std / size * rng.uniform(0.7, 1.3, n_blocks) * rng.permutation(np.resize([1.0, -1.0], n_blocks))
    if type == "IQ1_M":  # four bits of d on top of each of the four uint16 that end a block
        nibbles = d.astype(np.float16).view(np.uint16)[:, None] >> np.array([0, 4, 8, 12], np.uint16) & 15
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | nibbles.astype(np.uint8) << 4
    else:
        blocks[:, at : at + 2] = _half(d)
    return blocks.reshape(-1)


def _half(values: npt.NDArray[np.float64]) -> Bytes:
    """[n] to the bytes of f16, [n, 2]."""
    return values.astype(np.float16).reshape(-1, 1).view(np.uint8)


def _pack_scales(scales: Bytes, minima: Bytes) -> Bytes:
    """Eight 6-bit scales and eight 6-bit minima into 12 bytes, as get_scale_min_k4 of ggml-quants.c reads them."""
    low = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    middle = minima[:, :4] | (minima[:, 4:] >> 4 << 6)
    high = (scales[:, 4:] & 15) | (minima[:, 4:] << 4)
    return np.concatenate([low, middle, high], axis=1)
