"""Turning keys in their cells, of every KV type: against rotating what the cell held, and nothing else is touched."""

import numpy as np
import pytest

from tests import reference as ref
from tests.kernels.harness import address, aligned, run
from tests.kernels.test_rope import table_of
from tests.reference import kv

kv_shift = pytest.importorskip("llmkit.kernels.kv_shift")
registry = pytest.importorskip("llmkit.kernels.kv_types.registry")

CELLS = ((0, 3), (1, 31), (0, 0), (1, 17))  # block and cell of each row
DELTAS = np.array([-5, 40, 1, -700], np.int64)
BOUNDS = {"f32": 1e-12, "f16": 1e-6, "bf16": 1e-4, "q8_0": 1e-3}  # 2e-2 for codes of 4 and 5 bits


@pytest.mark.parametrize("name", kv.TYPES)
@pytest.mark.parametrize(
    ("head_dim", "n_rot", "interleaved", "n_rot_k"), [(64, 64, 0, 64), (128, 32, 1, 128), (96, 96, 1, 0)]
)
def test_against_the_twin(name: str, head_dim: int, n_rot: int, interleaved: int, n_rot_k: int) -> None:
    rng, n_head_kv = np.random.default_rng(head_dim), 2
    head_bytes, n_rot_k = kv.head_bytes(name, head_dim), n_rot_k if name in kv.QUANTISED else 0
    blocks = aligned(np.full((2, n_head_kv * head_bytes + 64), 255, np.uint8))
    heads = blocks[:, 64:].reshape(2, n_head_kv, head_bytes)
    k = rng.standard_t(4, size=(len(CELLS), n_head_kv, head_dim)).astype(np.float32)
    for row, head in np.ndindex(len(CELLS), n_head_kv):
        block, cell = CELLS[row]
        kv.put(heads[block, head], name, True, cell, kv.hadamard(k[row, head], n_rot_k) if n_rot_k else k[row, head])
    before, rows = blocks.copy(), [address(blocks[block]) for block, _ in CELLS]
    rows[2] = 0  # a row without a cell of this kind
    scratch = aligned(np.full(kv_shift.scratch_bytes(head_dim), 255, np.uint8))
    run(
        kv_shift.kv_shift, kv_shift.FIELDS, len(CELLS), n_head_kv=n_head_kv, head_dim=head_dim, n_rot=n_rot,
        table=table_of(DELTAS, 1e4 ** (-2.0 * np.arange(n_rot // 2) / n_rot)), interleaved=interleaved,
        blocks=np.array(rows, np.int64), cells=np.array([cell for _, cell in CELLS], np.int64), k_offset=64,
        k_head_bytes=head_bytes, k_load=registry.kv_type(name).load_k, k_store=registry.kv_type(name).store_k,
        hadamard=registry.hadamard_address() if n_rot_k else 0, n_rot_k=n_rot_k, scratch=scratch,
        scratch_bytes=scratch.size,
    )  # fmt: skip

    cos, sin = ref.rope_tables(DELTAS, n_rot, 1e4)
    held = kv.rounded(name, kv.hadamard(k, n_rot_k)) if n_rot_k else kv.rounded(name, k)
    want = ref.rope((kv.hadamard(held, n_rot_k) if n_rot_k else held).astype(np.float64), cos, sin, not interleaved)
    got = np.array([[kv.get(head, name, cell, head_dim) for head in heads[block]] for block, cell in CELLS])
    got = kv.hadamard(got, n_rot_k) if n_rot_k else got
    turned = [0, 1, 3]
    assert ref.nmse(got[turned], want[turned]) <= BOUNDS.get(name, 2e-2)
    assert ref.nmse(k[turned], want[turned]) > 0.1  # they were turned indeed
    for head in range(n_head_kv):  # everything but the turned cells is as it was
        for row in turned:
            block, cell = CELLS[row]
            kv.put(before[block, 64 + head * head_bytes :][:head_bytes], name, True, cell, np.zeros(head_dim))
            kv.put(heads[block, head], name, True, cell, np.zeros(head_dim))
    np.testing.assert_array_equal(blocks, before)
