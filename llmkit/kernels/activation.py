"""Gated activations: y = f(gate) * up with f = SiLU (Shazeer 2020, arXiv:2002.05202) or GELU in its tanh form."""

from __future__ import annotations

from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.work import n_rows, run_length, take
from llmkit.simd.ops import add, arg, div, exp, fma, mul, splat, sub, vload, vstore

# gate, up, y: float32 rows, stride bytes apart, n_vectors vectors of 16 columns each; y may be gate.
FIELDS = ("counter", "n_rows", "gate", "up", "y", "stride", "n_vectors")
GATE, UP, Y, STRIDE, N_VECTORS = range(2, 7)

_RUN = 32  # vectors an item


@helper
def _silu(x):
    """x / (1 + e^-x)."""
    return div(x, add(splat(1.0), exp(sub(splat(0.0), x))))


@helper
def _gelu(x):
    """0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2/pi) x (1 + 0.044715 x^2)."""
    u = mul(mul(splat(0.7978845608028654), x), fma(mul(splat(0.044715), x), x, splat(1.0)))
    return div(x, add(splat(1.0), exp(mul(splat(-2.0), u))))


@helper
def _start(args, item, runs):
    """Byte offset of an item, and its number of vectors."""
    first = item % runs * _RUN
    return item // runs * arg(args, STRIDE) + 64 * first, min(_RUN, arg(args, N_VECTORS) - first)


@kernel
def swiglu(args, _thread, n_threads):
    runs = (arg(args, N_VECTORS) + _RUN - 1) // _RUN
    items = n_rows(args) * runs
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for item in range(first_item, min(first_item + run, items)):
            offset, n = _start(args, item, runs)
            for i in range(n):
                at = offset + 64 * i
                vstore(arg(args, Y) + at, mul(_silu(vload(arg(args, GATE) + at)), vload(arg(args, UP) + at)))


@kernel
def geglu(args, _thread, n_threads):
    runs = (arg(args, N_VECTORS) + _RUN - 1) // _RUN
    items = n_rows(args) * runs
    run = run_length(items, n_threads)
    while True:
        first_item = take(args, run)
        if first_item >= items:
            break
        for item in range(first_item, min(first_item + run, items)):
            offset, n = _start(args, item, runs)
            for i in range(n):
                at = offset + 64 * i
                vstore(arg(args, Y) + at, mul(_gelu(vload(arg(args, GATE) + at)), vload(arg(args, UP) + at)))
