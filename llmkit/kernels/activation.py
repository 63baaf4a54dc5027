"""Gated activations: y = f(gate) * up with f = SiLU (Shazeer 2020, arXiv:2002.05202) or GELU in its tanh form."""

from __future__ import annotations

from llmkit.kernels.jit import helper, row_kernel
from llmkit.simd.ops import add, arg, div, exp, fma, mul, splat, sub, vload, vstore

# gate, up, y: float32 rows, stride bytes apart, n_vectors vectors of 16 columns each; y may be gate.
FIELDS = ("gate", "up", "y", "stride", "n_vectors")
GATE, UP, Y, STRIDE, N_VECTORS = range(5)


@helper
def _silu(x):
    """x / (1 + e^-x)."""
    return div(x, add(splat(1.0), exp(sub(splat(0.0), x))))


@helper
def _gelu(x):
    """0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) x (1 + 0.044715 x^2)."""
    u = mul(mul(splat(0.7978845608028654), x), fma(mul(splat(0.044715), x), x, splat(1.0)))
    return div(x, add(splat(1.0), exp(mul(splat(-2.0), u))))


@row_kernel
def swiglu(args, first_row, last_row):
    for row in range(first_row, last_row):
        for i in range(arg(args, N_VECTORS)):
            at = row * arg(args, STRIDE) + 64 * i
            vstore(arg(args, Y) + at, mul(_silu(vload(arg(args, GATE) + at)), vload(arg(args, UP) + at)))


@row_kernel
def geglu(args, first_row, last_row):
    for row in range(first_row, last_row):
        for i in range(arg(args, N_VECTORS)):
            at = row * arg(args, STRIDE) + 64 * i
            vstore(arg(args, Y) + at, mul(_gelu(vload(arg(args, GATE) + at)), vload(arg(args, UP) + at)))
