"""Random weights as the bytes of any tensor type that llmkit runs, for tiny models.

Owns the random blocks. Types that the `gguf` package can quantise go through it, so that a block is what a real file
would hold; K-quants, which it cannot, are blocks with random codes and scales of a size that gives the wanted spread.
"""

import numpy as np
import numpy.typing as npt

from llmkit.files.ggml_types import GGML_TYPES, TYPE_IDS

Bytes = npt.NDArray[np.uint8]

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""The tensor types of the first milestone, by ggml's names."""


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...], type: str, std: float) -> Bytes:
    """Bytes of a tensor of `shape` (GGUF order) and `type`: values of mean 0 and a deviation of about `std`."""
    if type in ("Q4_K", "Q5_K", "Q6_K"):
        n_blocks = int(np.prod(shape)) // 256
        return random_q6_k(rng, n_blocks, std) if type == "Q6_K" else random_q45_k(rng, n_blocks, type, std)
    values = rng.standard_normal(tuple(reversed(shape)), dtype=np.float32) * np.float32(std)
    return quantized(values, type)


def quantized(values: npt.NDArray[np.float32], type: str) -> Bytes:
    """The bytes of `values` (shape in NumPy order, rows last) as `type`, which must be none of the K-quants."""
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


def _half(values: npt.NDArray[np.float64]) -> Bytes:
    """[n] to the bytes of f16, [n, 2]."""
    return values.astype(np.float16).reshape(-1, 1).view(np.uint8)


def _pack_scales(scales: Bytes, minima: Bytes) -> Bytes:
    """Eight 6-bit scales and eight 6-bit minima into 12 bytes, as get_scale_min_k4 of ggml-quants.c reads them."""
    low = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    middle = minima[:, :4] | (minima[:, 4:] >> 4 << 6)
    high = (scales[:, 4:] & 15) | (minima[:, 4:] << 4)
    return np.concatenate([low, middle, high], axis=1)
