"""Quantised weights and 8-bit activations, the slow way.

Owns the rule which weight types meet 8-bit activations and how those are rounded; weights are decoded by the `gguf`
package, the oracle. Knows no model.
"""

from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from llmkit.files.ggml_types import type_name
from tests.reference.ops import Array

BLOCK_32 = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "NVFP4", "Q1_0", "Q2_0")
BLOCK_256 = (
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"),
)
FLOATS = ("F32", "F16", "BF16")


def act_block_size(type_id: int) -> int:
    """Columns per activation block in front of weights of this ggml type: 32, 256, or 0 for float activations."""
    name = type_name(type_id)
    if name in FLOATS:
        return 0
    assert name in BLOCK_32 + BLOCK_256, f"no rule for {name}"
    return 32 if name in BLOCK_32 else 256


def quantize_activations(x: Array, block: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """x [..., n], n a multiple of block -> (q int8 [..., n], d float32 [..., n / block]).

    d = amax / 127 and q = round half to even(x * (127 / amax)), all in float32; a block below 2^-100 gives q = 0."""
    blocks = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, block)
    largest = np.abs(blocks).max(axis=-1)
    d = largest / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest >= 2.0**-100, np.float32(127) / largest, np.float32(0)).astype(np.float32)
    q = np.rint(blocks * inverse[..., None]).astype(np.int8)
    return q.reshape(x.shape), d


def quantize_dequantize(x: Array, block: int) -> Array:
    """What 8-bit activations leave of x, in x's dtype. block == 0 leaves x alone."""
    if block == 0:
        return x
    q, d = quantize_activations(x, block)
    values = q.reshape(*x.shape[:-1], -1, block).astype(x.dtype) * d[..., None].astype(x.dtype)
    return np.asarray(values.reshape(x.shape))


def dequantize_rows(raw: NDArray[np.uint8], type_id: int) -> NDArray[np.float32]:
    """raw [n_rows, row_bytes] of one ggml type -> float32 [n_rows, n_columns]."""
    if type_name(type_id) in ("Q1_0", "Q2_0"):
        return _decode_bits(raw, 1 if type_name(type_id) == "Q1_0" else 2)
    kind = GGMLQuantizationType(type_id)
    block_size, type_size = GGML_QUANT_SIZES[kind]
    n_columns = raw.shape[1] // type_size * block_size
    decoded: Any = dequantize(raw, kind)  # F32 and F16 come back as views of their own type
    return np.asarray(decoded.reshape(raw.shape[0], n_columns), np.float32)


def _decode_bits(raw: NDArray[np.uint8], n_bits: int) -> NDArray[np.float32]:
    """Q1_0 and Q2_0, which the `gguf` package cannot decode: d (f16), then 16 bytes of codes, the first lowest.

    A value is d times the code less 1, or with 1 bit, d or -d (dequantize_row_q1_0 and _q2_0 of ggml-quants.c)."""
    blocks = raw.reshape(raw.shape[0], -1, 18)
    d = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    codes = blocks[..., 2:, None] >> np.arange(0, 8, n_bits, dtype=np.uint8) & np.uint8((1 << n_bits) - 1)
    values = codes.astype(np.float32) - 1 if n_bits == 2 else 2 * codes.astype(np.float32) - 1
    return np.asarray((d * values.reshape(*d.shape[:-1], -1)).reshape(raw.shape[0], -1), np.float32)


def matmul(x: Array, raw: NDArray[np.uint8], type_id: int, act_quant: bool = False, rows_at_once: int = 8192) -> Array:
    """x [n, n_columns] times the weights raw [n_rows, row_bytes] -> [n, n_rows], in x's dtype.

    A slice of rows is decoded at a time, so that an output matrix of a large vocabulary fits into memory."""
    x = quantize_dequantize(x, act_block_size(type_id) if act_quant else 0)
    out = np.empty((x.shape[0], raw.shape[0]), x.dtype)
    for r0 in range(0, raw.shape[0], rows_at_once):
        rows = slice(r0, r0 + rows_at_once)
        out[:, rows] = x @ dequantize_rows(raw[rows], type_id).astype(x.dtype).T
    return out
