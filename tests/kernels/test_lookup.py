"""The byte lookup of each instruction set."""

import numba
import numpy as np

from llmkit.simd import emitter as em
from llmkit.simd.vector import operation
from tests.kernels.harness import address, aligned

TABLE = [(37 * i + 11) % 256 for i in range(16)]
i64 = numba.types.int64


@operation(numba.types.void, i64, i64)
def _lookup(e, codes, out):
    e.store(e.lookup16(e.load(em.I8X64, codes), TABLE), out)


@operation(numba.types.void, i64, i64)
def _lookup_generic(e, codes, out):
    plain = em.Emitter(e.b)
    plain.store(plain.lookup16(plain.load(em.I8X64, codes), TABLE), out)


@numba.njit
def _both(codes, native, generic):
    _lookup(codes, native)
    _lookup_generic(codes, generic)


def test_lookup16() -> None:
    codes = aligned(np.random.default_rng(1).permutation(np.arange(64, dtype=np.uint8) % 16))
    outs = [aligned(np.zeros(64, np.uint8)) for _ in range(2)]
    _both(address(codes), *(address(out) for out in outs))
    for out in outs:
        np.testing.assert_array_equal(out, np.array(TABLE, np.uint8)[codes])
