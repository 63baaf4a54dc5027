"""What a run of a plan reads: one ubatch, in arrays at fixed addresses. The engine fills them, kernels read them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_KINDS = 2  # of memory; a unit of attention has as many columns of cells


class PlanInputs:
    """Arrays for at most `n_rows_max` rows (tokens).

    counts: int64 [n_tokens, n_out, n_units, address of partial results, address of units]; tokens int32;
    positions, out_rows (rows whose logits are wanted) int64; by kind of memory blocks (address of the block of each
    row's cell) and cells (0..31); by window first_visible (the first token of its sequence that a row sees); rotated:
    see kernels.kv_shift; units as in kernels.attention.
    """

    def __init__(self, n_rows_max: int) -> None:
        self.n_rows_max = n_rows_max
        self.counts = np.zeros(5, np.int64)
        self.tokens = np.zeros(n_rows_max, np.int32)
        self.positions, self.rotated, self.out_rows = np.zeros((3, n_rows_max), np.int64)
        self.blocks, self.cells = np.zeros((2, MAX_KINDS, n_rows_max), np.int64)
        self.first_visible: dict[int, npt.NDArray[np.int64]] = {}
        self.reads_positions = False  # whether a kernel, or what fills first_visible, reads those of earlier tokens
        self._partials, self._done = np.zeros(0, np.float32), np.zeros(0, np.int64)
        self._units = np.zeros(0, np.int64)
        self._columns: list[npt.NDArray[np.int64]] = []

    def blocks_of(self, kind: int) -> int:
        """Address of the blocks of rows in this kind of memory."""
        return int(self.blocks[kind].ctypes.data)

    def cells_of(self, kind: int) -> int:
        """Address of the cells of rows in this kind of memory."""
        return int(self.cells[kind].ctypes.data)

    def first_visible_of(self, window: int) -> int:
        """Address of the first token that each row sees through this window."""
        self.reads_positions = True
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

    def reserve_partials(self, n_floats: int, n_counters: int) -> int:
        """Makes room for attention's partial results; address of int64 [n_counters], all zero between runs."""
        if n_floats > self._partials.size:
            self._partials = np.empty(n_floats, np.float32)
        if n_counters > self._done.size:
            self._done = np.zeros(n_counters, np.int64)
        self.counts[3] = self._partials.ctypes.data
        return self._done.ctypes.data

    def set_units(self, units: npt.NDArray[np.int64], columns: list[npt.NDArray[np.int64]]) -> None:
        """Takes attention's units of work, int64 [n, UNIT], and the arrays that they point into."""
        self._units, self._columns = np.ascontiguousarray(units), columns
        self.counts[2], self.counts[4] = len(units), self._units.ctypes.data
