"""Normalisation by the root mean square, x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019,
arXiv:1910.07467), and by mean and variance, (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016,
arXiv:1607.06450).
"""

from __future__ import annotations

import math

from llmkit.kernels.jit import helper, row_kernel
from llmkit.simd.ops import (
    add,
    arg,
    bits_to_f32,
    fma,
    fma1,
    hsum,
    load_f32,
    mul,
    splat,
    store_f32,
    sub,
    vload,
    vstore,
)

# x: float32 rows of n_groups x n_cols values, x_stride bytes apart, each group normalised alone; weight: [n_cols];
# y: rows y_stride apart (may be x); eps: float32 bits; accumulate: 1 adds to y.
FIELDS = ("x", "x_stride", "n_groups", "n_cols", "weight", "eps", "y", "y_stride", "accumulate")
X, X_STRIDE, N_GROUPS, N_COLS, WEIGHT, EPS, Y, Y_STRIDE, ACCUMULATE = range(9)

# As above; weight and bias may be 0 (none); weight_stride: bytes from one group's weights to the next's, 0 if shared.
LAYER_FIELDS = (*FIELDS[:8], "bias", "weight_stride")
BIAS, WEIGHT_STRIDE = 8, 9


@helper
def _mean_square(x, n_cols):
    """16 sums, column i into sum i mod 16, then a tree; what is left of the columns one by one."""
    whole = n_cols // 16 * 16
    acc = splat(0.0)
    for i in range(0, whole, 16):
        v = vload(x + 4 * i)
        acc = fma(v, v, acc)
    total = hsum(acc)
    for i in range(whole, n_cols):
        v1 = load_f32(x + 4 * i)
        total = fma1(v1, v1, total)
    return total / n_cols


@helper
def _scaled(x, scale, weight, y, accumulate, n_cols):
    whole = n_cols // 16 * 16
    for i in range(0, whole, 16):
        v = mul(mul(vload(x + 4 * i), splat(scale)), vload(weight + 4 * i))
        if accumulate:
            v = add(vload(y + 4 * i), v)
        vstore(y + 4 * i, v)
    for i in range(whole, n_cols):
        v1 = load_f32(x + 4 * i) * scale * load_f32(weight + 4 * i)
        if accumulate:
            v1 = load_f32(y + 4 * i) + v1
        store_f32(y + 4 * i, v1)


@helper
def _mean(x, n_cols):
    """16 sums, column i into sum i mod 16, then a tree; what is left of the columns one by one."""
    whole = n_cols // 16 * 16
    acc = splat(0.0)
    for i in range(0, whole, 16):
        acc = add(acc, vload(x + 4 * i))
    total = hsum(acc)
    for i in range(whole, n_cols):
        total += load_f32(x + 4 * i)
    return total / n_cols


@helper
def _centre(x, mean, y, n_cols):
    """y = x - mean."""
    whole = n_cols // 16 * 16
    for i in range(0, whole, 16):
        vstore(y + 4 * i, sub(vload(x + 4 * i), splat(mean)))
    for i in range(whole, n_cols):
        store_f32(y + 4 * i, load_f32(x + 4 * i) - mean)


@helper
def _finish(y, scale, weight, bias, n_cols):
    """y = y * scale (* weight) (+ bias)."""
    whole = n_cols // 16 * 16
    for i in range(0, whole, 16):
        v = mul(vload(y + 4 * i), splat(scale))
        if weight != 0:
            v = mul(v, vload(weight + 4 * i))
        if bias != 0:
            v = add(v, vload(bias + 4 * i))
        vstore(y + 4 * i, v)
    for i in range(whole, n_cols):
        v1 = load_f32(y + 4 * i) * scale
        if weight != 0:
            v1 *= load_f32(weight + 4 * i)
        if bias != 0:
            v1 += load_f32(bias + 4 * i)
        store_f32(y + 4 * i, v1)


@row_kernel
def layer_norm(args, first_row, last_row):
    n_cols, eps = arg(args, N_COLS), bits_to_f32(arg(args, EPS))
    for row in range(first_row, last_row):
        for group in range(arg(args, N_GROUPS)):
            x = arg(args, X) + row * arg(args, X_STRIDE) + 4 * group * n_cols
            y = arg(args, Y) + row * arg(args, Y_STRIDE) + 4 * group * n_cols
            weight = arg(args, WEIGHT)
            if weight != 0:
                weight += group * arg(args, WEIGHT_STRIDE)
            _centre(x, _mean(x, n_cols), y, n_cols)
            scale = 1.0 / math.sqrt(_mean_square(y, n_cols) + eps)
            _finish(y, scale, weight, arg(args, BIAS), n_cols)


@row_kernel
def rms_norm(args, first_row, last_row):
    n_cols, eps = arg(args, N_COLS), bits_to_f32(arg(args, EPS))
    for row in range(first_row, last_row):
        for group in range(arg(args, N_GROUPS)):
            x = arg(args, X) + row * arg(args, X_STRIDE) + 4 * group * n_cols
            y = arg(args, Y) + row * arg(args, Y_STRIDE) + 4 * group * n_cols
            scale = 1.0 / math.sqrt(_mean_square(x, n_cols) + eps)
            _scaled(x, scale, arg(args, WEIGHT), y, arg(args, ACCUMULATE), n_cols)
