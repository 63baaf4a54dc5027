"""What a run of a plan reads: one ubatch, in arrays at fixed addresses. The engine fills them, kernels read them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_KINDS = 2  # of memory; a unit of attention has as many columns of cells


class PlanInputs:
    """Arrays for at most `n_rows_max` rows (tokens).

    counts: int64 [n_tokens, n_out, n_units, addresses of: partial results, units, counters of rows]; tokens int32;
    positions, out_rows (rows whose logits are wanted) int64; by kind of memory blocks (address of the block of each
    row's cell) and cells (0..31); by window first_visible (the first token of its sequence that a row sees); rotated:
    see kernels.kv_shift; units, row_ends and row_partials as in kernels.attention_memory.
    """

    def __init__(self, n_rows_max: int) -> None:
        self.n_rows_max = n_rows_max
        self.counts = np.zeros(6, np.int64)
        self.tokens = np.zeros(n_rows_max, np.int32)
        self.positions, self.rotated, self.out_rows = np.zeros((3, n_rows_max), np.int64)
        self.row_ends, self.row_partials = np.zeros((2, n_rows_max), np.int64)
        self.blocks, self.cells = np.zeros((2, MAX_KINDS, n_rows_max), np.int64)
        self.first_visible: dict[int, npt.NDArray[np.int64]] = {}
        self._partials, self._done = np.zeros(0, np.float32), np.zeros(0, np.int64)
        self._units: list[npt.NDArray[np.int64]] = []

    def blocks_of(self, kind: int) -> int:
        """Address of the blocks of rows in this kind of memory."""
        return int(self.blocks[kind].ctypes.data)

    def cells_of(self, kind: int) -> int:
        """Address of the cells of rows in this kind of memory."""
        return int(self.cells[kind].ctypes.data)

    def first_visible_of(self, window: int) -> int:
        """Address of the first token that each row sees through this window."""
        if window not in self.first_visible:
            self.first_visible[window] = np.zeros(self.n_rows_max, np.int64)
        return self.first_visible[window].ctypes.data

    @property
    def n_tokens_address(self) -> int:
        return self.counts.ctypes.data

    @property
    def n_out_address(self) -> int:
        return self.counts.ctypes.data + 8

    @property
    def n_units_address(self) -> int:
        return self.counts.ctypes.data + 16

    @property
    def partials_address(self) -> int:
        """Address of the address of the partial results."""
        return self.counts.ctypes.data + 24

    @property
    def units_address(self) -> int:
        """Address of the address of attention's units of work."""
        return self.counts.ctypes.data + 32

    @property
    def row_done_address(self) -> int:
        """Address of the address of what counts each row's finished spans."""
        return self.counts.ctypes.data + 40

    def reserve_partials(self, n_floats: int, n_counters: int) -> None:
        """Makes room for attention's partial results, and for counters, int64, all zero between runs."""
        if n_floats > self._partials.size:
            self._partials = np.empty(n_floats, np.float32)
        if n_counters > self._done.size:
            self._done = np.zeros(n_counters, np.int64)
        self.counts[3], self.counts[5] = self._partials.ctypes.data, self._done.ctypes.data

    def set_units(self, units: npt.NDArray[np.int64], *pointed_to: npt.NDArray[np.int64]) -> None:
        """Takes attention's units of work, int64 [n, UNIT], and the arrays that they point into."""
        self._units = [units, *pointed_to]
        self.counts[2], self.counts[4] = len(units), units.ctypes.data
