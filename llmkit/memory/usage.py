"""How much memory the cells take, by kind. Records only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KindUsage:
    """Cells of one kind of memory (taken 32 at a time, as blocks) and their bytes, for all its layers.

    total: what there may be; of that, memory is committed up to the peak.
    """

    name: str
    window: int
    n_layer: int
    cells_used: int
    cells_peak: int
    cells_total: int
    bytes_used: int
    bytes_peak: int
    bytes_total: int


@dataclass(frozen=True)
class Usage:
    """All kinds. bytes_peak is the sum of each kind's own peak."""

    kinds: tuple[KindUsage, ...]

    def kind(self, name: str) -> KindUsage | None:
        """The kind of this name: "full" or "window"."""
        return next((kind for kind in self.kinds if kind.name == name), None)

    @property
    def bytes_used(self) -> int:
        return sum(kind.bytes_used for kind in self.kinds)

    @property
    def bytes_peak(self) -> int:
        return sum(kind.bytes_peak for kind in self.kinds)

    @property
    def bytes_total(self) -> int:
        return sum(kind.bytes_total for kind in self.kinds)
