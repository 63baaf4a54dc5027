"""Q4_1 cells: 32 values d * q + m, codes of 4 bits."""

from __future__ import annotations

from llmkit.kernels.jit import cells
from llmkit.kernels.kv_types.quantised import CellFormat, load_k_operation, load_v_operation
from llmkit.kernels.kv_types.storing import store_operation

FORMAT = CellFormat(4, has_min=True)
_load_k, _load_v = load_k_operation(FORMAT), load_v_operation(FORMAT)
_store_k, _store_v = store_operation(FORMAT, True), store_operation(FORMAT, False)


@cells
def load_k(head, n_dims, _first, _n, target):
    _load_k(head, n_dims, target)
    return target


@cells
def load_v(head, n_dims, first, n, target):
    _load_v(head, n_dims, first, n, target)
    return target


@cells
def store_k(head, n_dims, cell, source, _n_valid):
    _store_k(head, n_dims, cell, source)
    return 0


@cells
def store_v(head, n_dims, cell, source, _n_valid):
    _store_v(head, n_dims, cell, source)
    return 0
