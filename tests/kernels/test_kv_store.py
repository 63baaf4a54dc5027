"""Rotation against its twin, and K and V in their cells: each type's bytes where they must lie, and nowhere else."""

import numpy as np
import pytest

from tests import reference as ref
from tests.kernels.harness import address, aligned, run
from tests.kernels.test_rope import table_of
from tests.reference import kv

kv_store = pytest.importorskip("llmkit.kernels.kv_store")
registry = pytest.importorskip("llmkit.kernels.kv_types.registry")

Shape = tuple[int, int, int, int]
ROWS = ((0, 3), (0, 31), (1, 0))  # block and cell


def store(shape: Shape, interleaved: int, names: tuple[str, str], rotated: bool) -> tuple[np.ndarray, ...]:
    """q, k and v before and after, and two blocks of bytes 9 that three rows were stored into."""
    n_head, n_head_kv, head_dim, n_rot = shape
    rng, n, v_dim = np.random.default_rng(head_dim), len(ROWS), -(-head_dim // 16) * 16
    q = aligned(rng.normal(size=(n, n_head, head_dim)).astype(np.float32))
    k = aligned(rng.normal(size=(n, n_head_kv, head_dim)).astype(np.float32))
    v = aligned(rng.normal(size=(n, n_head_kv, head_dim)).astype(np.float32), n_guard=16)
    before = (q.copy(), k.copy(), v.copy())
    k_bytes, v_bytes = kv.head_bytes(names[0], head_dim), kv.head_bytes(names[1], v_dim)
    blocks = aligned(np.full((2, n_head_kv * (k_bytes + v_bytes)), 9, np.uint8))
    k_type, v_type = (registry.kv_type(name) for name in names)
    run(
        kv_store.rope_store, kv_store.FIELDS, n, q=q, q_stride=q.strides[0], k=k, v=v, kv_stride=k.strides[0],
        n_head=n_head, n_head_kv=n_head_kv, head_dim=head_dim, n_rot=n_rot, interleaved=interleaved,
        table=table_of(np.array([5, 6, 77], np.int64), 1e4 ** (-2.0 * np.arange(n_rot // 2) / max(n_rot, 1))),
        blocks=np.array([address(blocks[i]) for i, _ in ROWS], np.int64),
        cells=np.array([cell for _, cell in ROWS], np.int64), k_offset=0, v_offset=n_head_kv * k_bytes,
        k_store=k_type.store_k, v_store=v_type.store_v, k_head_bytes=k_bytes, v_head_bytes=v_bytes, v_dim=v_dim,
        hadamard=registry.hadamard_address() if rotated else 0, n_rot_k=64 if rotated else 0,
        n_rot_v=64 if rotated else 0,
    )  # fmt: skip
    return *before, q, k, v, blocks


def expected(names: tuple[str, str], k: np.ndarray, v: np.ndarray, size: int) -> np.ndarray:
    """The blocks with these values in their cells."""
    n_head_kv, head_dim = k.shape[1:]
    padded = np.zeros((*v.shape[:2], -(-head_dim // 16) * 16), np.float32)
    padded[..., :head_dim] = v
    k_bytes, v_bytes = kv.head_bytes(names[0], head_dim), kv.head_bytes(names[1], padded.shape[2])
    blocks = np.full((2, size), 9, np.uint8)
    for row, (block, cell) in enumerate(ROWS):
        for head in range(n_head_kv):
            v_at = n_head_kv * k_bytes + head * v_bytes
            kv.put(blocks[block, head * k_bytes :][:k_bytes], names[0], True, cell, k[row, head])
            kv.put(blocks[block, v_at:][:v_bytes], names[1], False, cell, padded[row, head])
    return blocks


@pytest.mark.parametrize(
    "shape", [(1, 1, 16, 16), (9, 3, 64, 64), (4, 1, 40, 40), (2, 2, 8, 8), (2, 1, 32, 8), (2, 1, 32, 0)]
)
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotate(shape: Shape, interleaved: int) -> None:
    q0, k0, v0, q, k, v, blocks = store(shape, interleaved, ("f32", "f32"), rotated=False)
    cos, sin = ref.rope_tables(np.array([5, 6, 77]), max(shape[3], 1), 1e4)
    want_q, want_k = (ref.rope(t.astype(np.float64), cos, sin, neox=not interleaved) for t in (q0, k0))
    np.testing.assert_allclose(q, want_q, atol=1e-6)
    np.testing.assert_allclose(k, want_k, atol=1e-6)
    np.testing.assert_array_equal(v, v0)
    np.testing.assert_array_equal(blocks, expected(("f32", "f32"), k, v, blocks.shape[1]))


@pytest.mark.parametrize("name", kv.TYPES)
@pytest.mark.parametrize("shape", [(6, 2, 64, 0), (2, 1, 96, 0)])
def test_store(name: str, shape: Shape) -> None:
    """The bytes of ggml's quantisers in K's and in V's order; K and V of different types."""
    for names in ((name, "f16"), ("f16", name)):
        *_, k, v, blocks = store(shape, 0, names, rotated=False)
        np.testing.assert_array_equal(blocks, expected(names, k, v, blocks.shape[1]))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_transform(head_dim: int) -> None:
    q0, k0, v0, q, k, v, blocks = store((4, 2, head_dim, 0), 0, ("q8_0", "q4_0"), rotated=True)
    for before, after in ((q0, q), (k0, k), (v0, v)):
        np.testing.assert_array_equal(after, kv.hadamard(before, 64))
    np.testing.assert_array_equal(blocks, expected(("q8_0", "q4_0"), k, v, blocks.shape[1]))


def test_odd_blocks() -> None:
    """Nothing but zeros, one large value, equal values, ties of magnitude, tiny and huge numbers, NaN and infinity."""
    rows = np.zeros((8, 32), np.float32)
    rows[1, 5], rows[2], rows[3] = -1e3, 0.25, np.where(np.arange(32) % 2, -2.0, 2.0)
    rows[4], rows[5, 7], rows[6, 9], rows[7, 3] = 1e-20, 6e4, np.nan, np.inf
    for name in kv.QUANTISED:
        kind, head = registry.kv_type(name), aligned(np.zeros(kv.head_bytes(name, 32), np.uint8))
        got = aligned(np.zeros((32, 32), np.float32))
        for store_cell, load in ((kind.store_k, kind.load_k), (kind.store_v, kind.load_v)):
            for cell, row in enumerate(rows):
                call(store_cell, address(head), 32, cell, address(aligned(row)), 32)
            call(load, address(head), 32, 0, 8, address(got))
            values = (got.T if load == kind.load_k else got)[: len(rows)]
            np.testing.assert_array_equal(values[:6], kv.rounded(name, rows[:6]), err_msg=name)
            assert not np.isfinite(values[6:]).all(axis=1).any(), name  # a NaN stays visible


def call(function: int, *args: int) -> int:
    """A function of a KV type by its address."""
    from ctypes import CFUNCTYPE, c_int64

    return int(CFUNCTYPE(c_int64, *[c_int64] * 5)(function)(*args))


@pytest.mark.parametrize("size", [64, 256])
def test_the_transform_is_its_own_inverse(size: int) -> None:
    x = np.random.default_rng(1).normal(size=(3, size)).astype(np.float32)
    y = aligned(x)
    call(registry.hadamard_address(), address(y), y.size, size, 0, 0)
    signs = np.array([[(-1) ** (i & j).bit_count() for i in range(size)] for j in range(size)])
    np.testing.assert_allclose(y, x @ signs / np.sqrt(size), atol=1e-5)
    call(registry.hadamard_address(), address(y), y.size, size, 0, 0)
    np.testing.assert_allclose(y, x, atol=1e-6)
