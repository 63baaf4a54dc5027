"""The orthonormal Walsh-Hadamard transform: it spreads a head's outliers over its values before they are quantised.

H is symmetric and its own inverse: applied to queries and keys it changes no score; applied to the output it undoes
what it did to the values. Source: llama.cpp (attention rotation); Ashkboos et al. 2024, arXiv:2404.00456.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from llmkit.kernels.jit import cells
from llmkit.simd import emitter as em
from llmkit.simd.ops import add, mul, splat, sub, vload, vstore
from llmkit.simd.vector import f32x16, operation


@operation(f32x16, f32x16)
def hadamard16(e: em.Emitter, x: Any) -> Any:
    """The transform of 16 values, not scaled: sums and differences of lanes 1, 2, 4, 8 apart."""
    for step in (1, 2, 4, 8):
        other = ir.Constant(em.I32X16, [i ^ step for i in range(16)])
        signs = ir.Constant(em.F32X16, [-1.0 if i & step else 1.0 for i in range(16)])
        x = e.b.fadd(e.b.shuffle_vector(x, x, other), e.b.fmul(x, signs))
    return x


@cells
def hadamard(x, n_values, size, _unused, _unused_too):
    """Transforms n_values float32 in place, `size` (a power of two, 16 or more) at a time."""
    scale = splat(1.0 / math.sqrt(float(size)))
    for start in range(x, x + 4 * n_values, 4 * size):
        for i in range(start, start + 4 * size, 64):
            vstore(i, hadamard16(vload(i)))
        step = 64
        while step < 4 * size:
            for pair in range(start, start + 4 * size, 2 * step):
                for i in range(pair, pair + step, 64):
                    a, b = vload(i), vload(i + step)
                    vstore(i, add(a, b))
                    vstore(i + step, sub(a, b))
            step *= 2
        for i in range(start, start + 4 * size, 64):
            vstore(i, mul(vload(i), scale))
    return 0
