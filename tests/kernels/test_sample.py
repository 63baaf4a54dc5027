"""The passes over a vocabulary against NumPy, at lengths around their steps; nothing beyond a vector is touched."""

import numpy as np
import pytest
from numpy.typing import NDArray

from llmkit.kernels import sample

LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 1024, 5000)
GUARD = 32


def guarded(n: int, dtype: type = np.float32) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """n values with a guard on both sides, and the whole."""
    whole = np.full(n + 2 * GUARD, 77, dtype=dtype)
    return whole[GUARD : GUARD + n], whole


def intact(whole: NDArray[np.generic]) -> bool:
    return bool((whole[:GUARD] == 77).all() and (whole[-GUARD:] == 77).all())


def row(n: int, seed: int = 1) -> NDArray[np.float32]:
    """Small values between guards of NaN, which would show in any result."""
    whole = np.full(n + 2 * GUARD, np.nan, dtype=np.float32)
    whole[GUARD : GUARD + n] = np.random.default_rng(seed).normal(0, 3, n)
    return whole[GUARD : GUARD + n]


def scanned(x: NDArray[np.float32]) -> tuple[float, NDArray[np.generic]]:
    maxima, whole = guarded(-(-x.size // sample.BLOCK))
    largest = sample.scan(x.ctypes.data, x.size, maxima.ctypes.data)
    assert intact(whole)
    return largest, maxima


@pytest.mark.parametrize("n", LENGTHS)
def test_scan(n: int) -> None:
    x = row(n)
    largest, maxima = scanned(x)
    assert largest == x.max()
    assert maxima.tolist() == [x[i : i + sample.BLOCK].max() for i in range(0, n, sample.BLOCK)]


@pytest.mark.parametrize("n", [1, 17, 300, 1000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scan_shows_nan_and_infinity_wherever_they_are(n: int, bad: float) -> None:
    for place in {0, n // 2, n - 1}:
        x = row(n)
        x[place] = bad
        np.testing.assert_equal(np.float32(scanned(x)[0]), x.max())


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_collect(n: int, share: float) -> None:
    x = row(n)
    bound = np.float32(np.sort(x)[::-1][min(int(share * n), n - 1)])
    ids, whole = guarded(n, np.int64)
    found = sample.collect(x.ctypes.data, n, scanned(x)[1].ctypes.data, bound, ids.ctypes.data)
    assert ids[:found].tolist() == np.flatnonzero(x >= bound).tolist()
    assert intact(whole)


@pytest.mark.parametrize("n", LENGTHS)
def test_keep_allowed(n: int) -> None:
    x, (y, whole) = row(n), guarded(n)
    bits = np.random.default_rng(n).integers(0, 2, -(-n // 32) * 32).astype(bool)
    words = np.packbits(bits, bitorder="little").view(np.uint32)
    sample.keep_allowed(x.ctypes.data, n, words.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(y, np.where(bits[:n], x, -np.inf))
    assert intact(whole)


@pytest.mark.parametrize("n", LENGTHS)
def test_weights(n: int) -> None:
    x, (y, whole) = row(n), guarded(n)
    x[:: max(n // 3, 2)] = -np.inf
    x[-1] = 5.0
    total = sample.weights(x.ctypes.data, n, x.max(), y.ctypes.data)
    expected = np.exp((x - x.max()).astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert total == pytest.approx(expected.sum(), rel=1e-6)
    assert (y[x == -np.inf] == 0).all()
    assert intact(whole)


def test_weights_too_small_for_a_float_are_0() -> None:
    x = np.array([0, -86.9, -87.1, -1000, -3.4e38], dtype=np.float32)
    y = np.empty_like(x)
    sample.weights(x.ctypes.data, x.size, 0.0, y.ctypes.data)
    assert y[1] > 0
    assert y[2:].tolist() == [0, 0, 0]


def test_a_weight_does_not_depend_on_its_place() -> None:
    """The last few are computed one by one, the others by sixteens."""
    x = row(1000)
    whole = np.empty_like(x)
    sample.weights(x.ctypes.data, x.size, x.max(), whole.ctypes.data)
    for n in (1, 5, 16, 100, 999):
        part = np.empty(n, dtype=np.float32)
        sample.weights(x[-n:].ctypes.data, n, x.max(), part.ctypes.data)
        assert part.tolist() == whole[-n:].tolist()
