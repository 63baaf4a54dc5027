"""Cells of our blocks to rows of ggml's types and back: the same bits in another order. Computes nothing.

A row holds all KV heads of one token; of quantised types it is blocks of 32 values (d, m, fifth bits, codes) one behind
the other. Ours are described in docs/state-format.md.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmkit.kernels.kv_types.registry import BLOCK_CELLS, TYPES

Bytes = npt.NDArray[np.uint8]

_CODES, _FIFTH, _D, _M = "codes", "fifth", "d", "m"
# Of ggml's blocks: fields in their order, and bytes.
_FIELDS = {
    "q8_0": ((_D, 2), (_CODES, 32)),
    "q5_1": ((_D, 2), (_M, 2), (_FIFTH, 4), (_CODES, 16)),
    "q5_0": ((_D, 2), (_FIFTH, 4), (_CODES, 16)),
    "q4_1": ((_D, 2), (_M, 2), (_CODES, 16)),
    "q4_0": ((_D, 2), (_CODES, 16)),
    "iq4_nl": ((_D, 2), (_CODES, 16)),
}
_OURS = (_CODES, _FIFTH, _D, _M)


def row_bytes(name: str, n_values: int) -> int:
    """Bytes of so many values of one token."""
    values, size = TYPES[name]
    return n_values // values * size


def to_rows(name: str, cells: Bytes, n_head: int, n_dims: int, *, key: bool) -> Bytes:
    """Rows of all cells, uint8 [n_blocks * 32][row_bytes]; cells: uint8 [n_blocks][n_head * head_bytes].

    n_dims: values of a head in a row; those that fill up V are left out.
    """
    n_blocks = len(cells)
    if name not in _FIELDS:
        size = TYPES[name][1]
        width = cells.shape[1] // (n_head * BLOCK_CELLS * size)
        shape = (n_blocks, n_head, width, BLOCK_CELLS, size) if key else (n_blocks, n_head, BLOCK_CELLS, width, size)
        order = (0, 3, 1, 2, 4) if key else (0, 2, 1, 3, 4)
        rows = cells.reshape(shape).transpose(order)[:, :, :, :n_dims]
        return np.ascontiguousarray(rows).reshape(n_blocks * BLOCK_CELLS, -1)
    regions = cells.reshape(n_blocks, n_head, n_dims // 32, -1)
    fields = dict(_FIELDS[name])
    parts, at = {}, 0
    for field in _OURS:
        if field in fields:
            n = fields[field]
            data = regions[..., at : at + BLOCK_CELLS * n]
            across = field == _CODES and key
            data = data.reshape(*data.shape[:-1], *((n, BLOCK_CELLS) if across else (BLOCK_CELLS, n)))
            parts[field] = data.swapaxes(-1, -2) if across else data
            at += BLOCK_CELLS * n
    whole = np.concatenate([parts[field] for field in fields], axis=-1)  # [block][head][group][cell][bytes]
    return np.ascontiguousarray(whole.transpose(0, 3, 1, 2, 4)).reshape(n_blocks * BLOCK_CELLS, -1)


def from_rows(name: str, rows: Bytes, n_head: int, width: int, *, key: bool) -> Bytes:
    """The reverse: cells uint8 [n_blocks][n_head * head_bytes] of rows uint8 [n_blocks * 32][row_bytes].

    width: values of a head in a cell, zeros behind those that the row has.
    """
    n_blocks = len(rows) // BLOCK_CELLS
    if name not in _FIELDS:
        size = TYPES[name][1]
        values = rows.reshape(n_blocks, BLOCK_CELLS, n_head, -1, size)
        filled = np.zeros((n_blocks, BLOCK_CELLS, n_head, width, size), np.uint8)
        filled[:, :, :, : values.shape[3]] = values
        order = (0, 2, 3, 1, 4) if key else (0, 2, 1, 3, 4)
        return np.ascontiguousarray(filled.transpose(order)).reshape(n_blocks, -1)
    groups = rows.reshape(n_blocks, BLOCK_CELLS, n_head, width // 32, -1).transpose(0, 2, 3, 1, 4)
    parts, at = {}, 0
    for field, n in _FIELDS[name]:
        data = groups[..., at : at + n]
        parts[field] = data.swapaxes(-1, -2) if field == _CODES and key else data
        at += n
    ours = [parts[field].reshape(*groups.shape[:3], -1) for field in _OURS if field in parts]
    return np.ascontiguousarray(np.concatenate(ours, axis=-1)).reshape(n_blocks, -1)
