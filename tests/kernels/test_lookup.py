"""The lookups of each instruction set: bytes, and float32."""

import numba
import numpy as np

from llmkit.simd import emitter as em
from llmkit.simd.vector import operation
from llmkit.simd.x86 import Avx2, Avx512Vnni
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


@operation(numba.types.void, i64, i64, i64)
def _lookup_f32(e, table, index, out):
    e.store(e.lookup_f32(e.load(em.F32X16, table), e.load(em.I32X16, index)), out)


@operation(numba.types.void, i64, i64, i64)
def _lookup_f32_generic(e, table, index, out):
    plain = em.Emitter(e.b)
    plain.store(plain.lookup_f32(plain.load(em.F32X16, table), plain.load(em.I32X16, index)), out)


@operation(numba.types.void, i64, i64, i64)
def _lookup_f32_avx2(e, table, index, out):
    other = Avx2(e.b) if isinstance(e, (Avx2, Avx512Vnni)) else e
    other.store(other.lookup_f32(other.load(em.F32X16, table), other.load(em.I32X16, index)), out)


@numba.njit
def _all_f32(table, index, native, generic, avx2):
    _lookup_f32(table, index, native)
    _lookup_f32_generic(table, index, generic)
    _lookup_f32_avx2(table, index, avx2)


def test_lookup_f32() -> None:
    """Only the low four bits of an index count."""
    rng = np.random.default_rng(2)
    table, index = aligned(rng.standard_normal(16).astype(np.float32)), aligned(rng.integers(0, 1 << 31, 16, np.int32))
    outs = [aligned(np.zeros(16, np.float32)) for _ in range(3)]
    _all_f32(address(table), address(index), *(address(out) for out in outs))
    for out in outs:
        np.testing.assert_array_equal(out, table[index & 15])
