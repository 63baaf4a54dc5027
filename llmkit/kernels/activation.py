"""Activations: y = f(x), or f(gate) * up (Shazeer 2020, arXiv:2002.05202).

silu(x) = x / (1 + e^-x); gelu in its tanh form; relu2(x) = max(x, 0)^2 (So et al. 2021, arXiv:2109.08668);
oai(gate, up) = g / (1 + e^(-1.702 g)) * (u + 1) with g = min(gate, 7), u = up within -7 .. 7, as gpt-oss has it.
"""

from __future__ import annotations

from llmkit.kernels.jit import helper, row_kernel
from llmkit.simd.ops import add, arg, div, exp, fma, mul, splat, sub, vload, vmax, vstore

# gate, up, y: float32 rows, stride bytes apart, n_vectors vectors of 16 columns each; y may be gate. Functions without
# a gate read `gate` alone.
FIELDS = ("function", "gate", "up", "y", "stride", "n_vectors")
FUNCTION, GATE, UP, Y, STRIDE, N_VECTORS = range(6)

SWIGLU, GEGLU, OAI, GELU, RELU2 = range(5)
FUNCTIONS = {"swiglu": SWIGLU, "geglu": GEGLU, "swiglu_oai": OAI, "gelu": GELU, "relu2": RELU2}


@helper
def _silu(x):
    return div(x, add(splat(1.0), exp(sub(splat(0.0), x))))


@helper
def _gelu(x):
    """0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) x (1 + 0.044715 x^2)."""
    u = mul(mul(splat(0.7978845608028654), x), fma(mul(splat(0.044715), x), x, splat(1.0)))
    return div(x, add(splat(1.0), exp(mul(splat(-2.0), u))))


@helper
def _vmin(a, b):
    return sub(splat(0.0), vmax(sub(splat(0.0), a), sub(splat(0.0), b)))


@helper
def _oai(gate, up):
    g = _vmin(gate, splat(7.0))
    u = vmax(_vmin(up, splat(7.0)), splat(-7.0))
    return mul(div(g, add(splat(1.0), exp(mul(splat(-1.702), g)))), add(u, splat(1.0)))


@helper
def _apply(function, gate, up, y, n):
    """n vectors; a loop of its own for each function, so that none pays for the others."""
    if function == SWIGLU:
        for i in range(0, 64 * n, 64):
            vstore(y + i, mul(_silu(vload(gate + i)), vload(up + i)))
    elif function == GEGLU:
        for i in range(0, 64 * n, 64):
            vstore(y + i, mul(_gelu(vload(gate + i)), vload(up + i)))
    elif function == OAI:
        for i in range(0, 64 * n, 64):
            vstore(y + i, _oai(vload(gate + i), vload(up + i)))
    elif function == GELU:
        for i in range(0, 64 * n, 64):
            vstore(y + i, _gelu(vload(gate + i)))
    else:
        for i in range(0, 64 * n, 64):
            x = vmax(vload(gate + i), splat(0.0))
            vstore(y + i, mul(x, x))


@row_kernel
def activate(args, first_row, last_row):
    for row in range(first_row, last_row):
        offset = row * arg(args, STRIDE)
        gate, up, y = arg(args, GATE) + offset, arg(args, UP) + offset, arg(args, Y) + offset
        _apply(arg(args, FUNCTION), gate, up, y, arg(args, N_VECTORS))
