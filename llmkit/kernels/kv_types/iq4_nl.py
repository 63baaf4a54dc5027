"""IQ4_NL cells: 32 values d * VALUES[q], codes of 4 bits. Source of the values: llama.cpp (kvalues_iq4nl)."""

from __future__ import annotations

from llmkit.kernels.jit import cells
from llmkit.kernels.kv_types.quantised import CellFormat, load_k_operation, load_v_operation
from llmkit.kernels.kv_types.storing import store_operation

VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FORMAT = CellFormat(4, values=VALUES)
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
