"""8-bit activations: codes, scales and sums equal to the twin's, in the places that the tiles read."""

import numpy as np
import pytest

from tests import reference as ref
from tests.kernels.harness import aligned, run

quantize = pytest.importorskip("llmkit.kernels.quantize")
tile = pytest.importorskip("llmkit.kernels.activation_tile")


def inputs(n: int, n_cols: int) -> np.ndarray:
    """Halves that round to even, zeros, both signs of the largest, tiny and huge rows."""
    rng = np.random.default_rng(n_cols)
    x = rng.normal(size=(n, n_cols)).astype(np.float32)
    x[0] = rng.integers(-253, 254, n_cols) / 2
    x[0, ::32] = -127  # the step is 1: every other value is a half
    x[1, : n_cols // 2] = 0
    x[2] *= np.float32(1e-30)
    x[3] *= np.float32(1e30)
    x[4] *= np.float32(1e-39)  # subnormal: 127 / largest would be infinite
    return aligned(x)


@pytest.mark.parametrize("n_cols", [256, 768])
def test_codes_of_32(n_cols: int) -> None:
    n = 11
    x = inputs(n, n_cols)
    out = aligned(np.zeros((2, n_cols // 32, tile.BLOCK_BYTES[tile.Q8_32]), np.uint8))
    run(
        quantize.to_q8_32,
        quantize.FIELDS,
        n,
        x=x,
        x_stride=x.strides[0],
        n_cols=n_cols,
        y=out,
        group_bytes=out.strides[0],
    )
    codes, d = ref.quantize_activations(x, 32)
    codes = codes.reshape(n, -1, 32)
    for i in range(n):
        group, lane = out[i // 8], i % 8
        np.testing.assert_array_equal(group[:, 32 * lane : 32 * lane + 32].view(np.int8), codes[i])
        tail = group[:, tile.Q8_32_SCALE :].copy()
        np.testing.assert_array_equal(tail.view(np.float32)[:, lane], d[i])
        np.testing.assert_array_equal(tail.view(np.int32)[:, 8 + lane], -codes[i].sum(-1, dtype=np.int32))
        scaled = d[i] * codes[i].sum(-1, dtype=np.int32).astype(np.float32)
        np.testing.assert_array_max_ulp(tail.view(np.float32)[:, 16 + lane], scaled, 1)


@pytest.mark.parametrize("n_cols", [256, 768])
def test_codes_of_256(n_cols: int) -> None:
    n = 11
    x = inputs(n, n_cols)
    out = aligned(np.zeros((2, n_cols // 256, tile.BLOCK_BYTES[tile.Q8_256]), np.uint8))
    run(
        quantize.to_q8_256, quantize.FIELDS, n, x=x, x_stride=x.strides[0], n_cols=n_cols, y=out,
        group_bytes=out.strides[0],
    )  # fmt: skip
    codes, d = ref.quantize_activations(x, 256)
    codes = codes.reshape(n, -1, 8, 32)
    for i in range(n):
        group, lane = out[i // 8], i % 8
        stored = group[:, : tile.Q8_256_SCALE].reshape(-1, 8, 8, 32)[:, :, lane].view(np.int8)
        np.testing.assert_array_equal(stored, codes[i])
        tail = group[:, tile.Q8_256_SCALE :].copy()
        np.testing.assert_array_equal(tail.view(np.float32)[:, lane], d[i])
        sums = tail[:, tile.Q8_256_NEG_SUM - tile.Q8_256_SCALE :].copy()
        minus = sums[:, : 16 * 32].view(np.int32).reshape(-1, 16, 8)[:, :, lane]
        np.testing.assert_array_equal(minus, -codes[i].reshape(-1, 16, 16).sum(-1, dtype=np.int32))
        whole = sums[:, 16 * 32 :].view(np.float32).reshape(-1, 8, 8)[:, :, lane]
        np.testing.assert_array_equal(whole, codes[i].sum(-1, dtype=np.int32).astype(np.float32))


@pytest.mark.parametrize("n_cols", [32, 33, 100])
def test_float_columns(n_cols: int) -> None:
    x = aligned(np.random.default_rng(1).normal(size=(9, n_cols)).astype(np.float32))
    out = aligned(np.zeros((2, n_cols, 8), np.float32))
    run(
        quantize.to_f32,
        quantize.FIELDS,
        9,
        x=x,
        x_stride=x.strides[0],
        n_cols=n_cols,
        y=out,
        group_bytes=out.strides[0],
    )
    np.testing.assert_array_equal(out.transpose(0, 2, 1).reshape(16, n_cols)[:9], x)
