"""Which byte of a block belongs to which of its 32 cells, for every type of keys and values. Reads no cell.

The layouts are those of kernels.kv_types: every byte belongs to one cell.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from llmkit.kernels.kv_types.registry import BLOCK_CELLS, TYPES
from llmkit.memory.kv_layout import KvLayout

Owners = npt.NDArray[np.int8]

_CODE_BITS = {"q8_0": 8, "q5_1": 4, "q5_0": 4, "q4_1": 4, "q4_0": 4, "iq4_nl": 4}


def head_owners(name: str, n_dims: int, *, key: bool) -> Owners:
    """The cell of each byte of one head's 32 cells, int8 [head_bytes]."""
    values, size = TYPES[name]
    if values == 1:  # keys lie [dim][cell], values [cell][dim]
        n = BLOCK_CELLS * n_dims * size
        return (np.arange(n) // size % BLOCK_CELLS if key else np.arange(n) // (size * n_dims)).astype(np.int8)
    per_cell = 32 * _CODE_BITS[name] // 8
    codes = np.arange(BLOCK_CELLS * per_cell)
    parts = [codes % BLOCK_CELLS if key else codes // per_cell]
    if name.startswith("q5"):
        parts.append(np.arange(BLOCK_CELLS * 4) // 4)
    parts += [np.arange(BLOCK_CELLS * 2) // 2] * (2 if name.endswith("_1") else 1)
    region = np.concatenate(parts).astype(np.int8)
    return np.tile(region, n_dims // values)


@cache
def block_owners(layout: KvLayout) -> Owners:
    """The cell of each byte of a block, int8 [block_bytes]."""
    key = np.tile(head_owners(layout.type_k, layout.head_dim, key=True), layout.n_head_kv)
    value = np.tile(head_owners(layout.type_v, layout.v_dim, key=False), layout.n_head_kv)
    return np.tile(np.concatenate([key, value]), layout.n_layer)


def without_cells(layout: KvLayout, block: npt.NDArray[np.uint8], used: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """A copy of a block, uint8 [block_bytes], whose cells that are not `used` (bool [32]) are zero."""
    return np.where(used[block_owners(layout)], block, np.uint8(0))
