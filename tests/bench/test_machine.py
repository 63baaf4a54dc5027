"""The ceilings: the loops really compute and read what they are counted for, and the paths differ as they must."""

import numpy as np
import pytest

from llmkit.bench import machine
from llmkit.kernels import ceilings
from llmkit.simd import target


def table() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 128, ceilings.TABLE_BYTES, dtype=np.uint8)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 21])
def test_the_byte_loop_computes_every_product(n: int) -> None:
    values, n_sums = table(), ceilings.n_sums(0)
    changing = values[:512].reshape(8, 16, 4).astype(np.int64)
    staying = values[512 : 512 + 64 * n_sums].reshape(n_sums, 16, 4).astype(np.int64)
    sums = np.zeros((n_sums, 16), np.int64)
    for i in range(n):
        sums += (changing[i % 8] * staying).sum(axis=2)
    assert ceilings.int8_peak(values.ctypes.data, n) == np.bitwise_xor.reduce(sums, axis=0).sum()


@pytest.mark.parametrize("n", [1, 9])
def test_the_float_loop_computes_every_product(n: int) -> None:
    values, n_sums = np.linspace(0.5, 1.5, ceilings.TABLE_BYTES // 4, dtype=np.float32), ceilings.n_sums(0)
    changing = values[:128].reshape(8, 16).astype(np.float64)
    staying = values[128 : 128 + 16 * n_sums].reshape(n_sums, 16).astype(np.float64)
    expected = sum((changing[i % 8] * staying).sum() for i in range(n))
    assert ceilings.fma_peak(values.ctypes.data, n) == pytest.approx(expected, rel=1e-4)


def test_reading_sees_every_byte() -> None:
    buffer = np.zeros(4 * ceilings.READ_BYTES, np.uint8)
    assert ceilings.read_memory(buffer.ctypes.data, 4) == 0
    for place in (0, 63, 64, ceilings.READ_BYTES - 1, buffer.size - 1):
        buffer[:] = 0
        buffer[place] = 1
        assert ceilings.read_memory(buffer.ctypes.data, 4) == 1 << 8 * (place % 4)
    assert ceilings.read_memory(buffer.ctypes.data, 3) == 0


def test_the_figures_are_possible() -> None:
    """Between a machine of 1990 and one of 2060."""
    assert 0.1 < machine.measure_bandwidth(2, 16 << 20) < 1e5
    int8, f32 = machine.measure_peaks(1)
    assert 0.1 < int8 < 1e6
    assert 0.01 < f32 < 1e6
    if target.path() != "generic":
        assert int8 > f32


@pytest.mark.skipif(target.path() == "generic", reason="this machine has one path only")
def test_other_paths_run_in_processes_of_their_own() -> None:
    others = machine.measure_other_paths(1)
    assert [peaks["isa"] for peaks in others] == [name for name in ("avx2", "generic") if name != target.path()]
    assert others[-1]["int8_gop_s"] < machine.measure_peaks(1)[0]


def test_the_processor_has_a_name() -> None:
    assert machine.cpu_name()
