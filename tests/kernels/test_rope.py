"""The table of rotations against its twin; rotating is tested where it is done, in test_kv_store."""

import numpy as np
import pytest

from tests import reference as ref
from tests.kernels.harness import aligned, float_bits, run

rope = pytest.importorskip("llmkit.kernels.rope")


def table_of(positions: np.ndarray, frequencies: np.ndarray, scale: float = 1.0) -> np.ndarray:
    table = aligned(np.zeros((len(positions), 2 * len(frequencies)), np.float32))
    run(
        rope.rope_table, rope.TABLE_FIELDS, len(positions), positions=positions, frequencies=frequencies,
        n_rot=2 * len(frequencies), table=table, scale=float_bits(scale),
    )  # fmt: skip
    return table


@pytest.mark.parametrize("freq_base", [1e4, 1e6])
def test_table(freq_base: float) -> None:
    positions = np.array([0, 1, 2, 511, 8191, 131071, 10_000_000], np.int64)
    frequencies = freq_base ** (-np.arange(32) / 32.0)
    table = table_of(positions, frequencies)
    cos, sin = ref.rope_tables(positions, 64, freq_base)
    np.testing.assert_allclose(table[:, :32], cos, atol=6e-8)
    np.testing.assert_allclose(table[:, 32:], sin, atol=6e-8)


def test_table_is_scaled() -> None:
    positions, frequencies = np.array([0, 7], np.int64), np.array([1.0, 0.25])
    angles = positions[:, None] * frequencies
    want = 1.5 * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    np.testing.assert_allclose(table_of(positions, frequencies, 1.5), want, atol=1e-7)
