"""Which bytes belong to which cell: those that storing into the cell changes."""

import ctypes

import numpy as np
import pytest

from llmkit.kernels.kv_types.registry import TYPES, kv_type
from llmkit.memory.cell_bytes import block_owners, head_owners, without_cells
from llmkit.memory.kv_layout import KvLayout

N = 64


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize("name", TYPES)
def test_storing_changes_the_cells_bytes(name: str, key: bool) -> None:
    functions = kv_type(name)
    store = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(functions.store_k if key else functions.store_v)
    owners = head_owners(name, N, key=key)
    head, source = np.zeros(owners.size, np.uint8), np.zeros(N, np.float32)
    for cell in range(32):
        changed = np.zeros(owners.size, bool)
        for seed in range(8):
            source[:] = np.random.default_rng(seed).standard_normal(N)
            for background in (0, 255):
                head[:] = background
                store(head.ctypes.data, N, cell, source.ctypes.data, N)
                changed |= head != background
        assert (owners[changed] == cell).all()
        assert changed.sum() >= 0.9 * (owners == cell).sum()
        assert (owners == cell).sum() * 32 == owners.size


def test_a_block_without_some_cells() -> None:
    layout = KvLayout(3, 2, 64, "q4_1", "f16")
    block = np.random.default_rng(0).integers(1, 256, layout.block_bytes).astype(np.uint8)
    used = np.arange(32) < 7
    got = without_cells(layout, block, used)
    owners = block_owners(layout)
    assert owners.size == layout.block_bytes
    assert (got[owners < 7] == block[owners < 7]).all()
    assert not got[owners >= 7].any()
    assert not without_cells(layout, block, ~used)[owners < 7].any()
