"""Rotation against its twin, and K and V in their cells: where they must lie, and nowhere else."""

import numpy as np
import pytest

from tests import reference as ref
from tests.kernels.harness import aligned, float_bits, run

rope = pytest.importorskip("llmkit.kernels.rope")

CELLS = 32


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


@pytest.mark.parametrize(
    ("n_head", "n_head_kv", "head_dim", "n_rot"),
    [(1, 1, 16, 16), (9, 3, 64, 64), (4, 1, 40, 40), (2, 2, 8, 8), (2, 1, 32, 8), (2, 1, 32, 0)],
)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_rotate_and_store(n_head: int, n_head_kv: int, head_dim: int, n_rot: int, interleaved: int, kv: str) -> None:
    rng = np.random.default_rng(head_dim)
    n, v_dim, dtype = 3, -(-head_dim // 16) * 16, np.dtype(np.float32 if kv == "f32" else np.float16)
    q = aligned(rng.normal(size=(n, n_head, head_dim)).astype(np.float32))
    k = aligned(rng.normal(size=(n, n_head_kv, head_dim)).astype(np.float32))
    v = aligned(rng.normal(size=(n, n_head_kv, head_dim)).astype(np.float32), n_guard=16)
    positions = np.array([5, 6, 77], np.int64)
    cos, sin = ref.rope_tables(positions, max(n_rot, 1), 1e4)
    want_q, want_k = (ref.rope(t.astype(np.float64), cos, sin, neox=not interleaved) for t in (q, k))
    want_v = v.copy()

    k_size, v_size = n_head_kv * head_dim * CELLS, n_head_kv * CELLS * v_dim
    blocks = [aligned(np.full(k_size + v_size, 9, dtype)) for _ in range(2)]
    which, cells = np.array([0, 0, 1]), np.array([3, 31, 0], np.int64)
    run(
        rope.rope_store, rope.STORE_FIELDS, n, q=q, q_stride=q.strides[0], k=k, v=v, kv_stride=k.strides[0],
        n_head=n_head, n_head_kv=n_head_kv, head_dim=head_dim, n_rot=n_rot, interleaved=interleaved,
        table=table_of(positions, 1e4 ** (-2.0 * np.arange(n_rot // 2) / max(n_rot, 1))),
        blocks=np.array([blocks[i].ctypes.data for i in which], np.int64), cells=cells, k_offset=0,
        v_offset=k_size * dtype.itemsize, k_type=int(kv == "f16"), v_type=int(kv == "f16"), v_dim=v_dim,
    )  # fmt: skip

    np.testing.assert_allclose(q, want_q, atol=1e-6)
    untouched = [np.ones(k_size + v_size, bool) for _ in blocks]
    for row in range(n):
        block, free, cell = blocks[which[row]], untouched[which[row]], cells[row]
        k_cells = block[:k_size].reshape(n_head_kv, head_dim, CELLS)[:, :, cell]
        v_cells = block[k_size:].reshape(n_head_kv, CELLS, v_dim)[:, cell]
        np.testing.assert_allclose(k_cells, want_k[row], atol=1e-6 if kv == "f32" else 2e-3)
        np.testing.assert_array_equal(v_cells[:, :head_dim], want_v[row].astype(dtype))
        free[:k_size].reshape(n_head_kv, head_dim, CELLS)[:, :, cell] = False
        free[k_size:].reshape(n_head_kv, CELLS, v_dim)[:, cell] = False
    for block, free in zip(blocks, untouched, strict=True):
        assert (block[free] == 9).all()
