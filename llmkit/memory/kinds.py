"""Kinds of memory: which layers of a model share a pool of blocks, because they keep the same tokens.

Layers that see everything keep all tokens. Layers with a window keep what a coming token can still see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.kv_layout import KvLayout


@dataclass(frozen=True)
class Kind:
    """`layers`: numbers of the model's layers, in the order they have in a block. window: 0 keeps all tokens."""

    name: str
    layers: tuple[int, ...]
    window: int
    layout: KvLayout

    def n_blocks(self, n_tokens: int, n_ubatch: int) -> int:
        """Blocks that one sequence takes: with a window no more than it and a ubatch, each with a block begun."""
        n_blocks = -(-n_tokens // BLOCK_CELLS)
        return min(n_blocks, (self.window + n_ubatch) // BLOCK_CELLS + 2) if self.window else n_blocks


@dataclass(frozen=True)
class MemoryLayout:
    """The kinds that a model's memory has: at most one of each window, those that keep everything first."""

    kinds: tuple[Kind, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of every kind."""
        return sum(kind.layout.block_bytes for kind in self.kinds)

    def bytes_of(self, n_tokens: int, n_ubatch: int) -> int:
        """Bytes that one sequence of n_tokens tokens takes, computed n_ubatch at a time."""
        return sum(kind.n_blocks(n_tokens, n_ubatch) * kind.layout.block_bytes for kind in self.kinds)

    def place(self, layer: int) -> tuple[int, int]:
        """The number of the kind that has this layer, and the layer's place in its blocks."""
        return next((i, kind.layers.index(layer)) for i, kind in enumerate(self.kinds) if layer in kind.layers)


def memory_layout(windows: tuple[int, ...], layout: KvLayout, n_ctx: int, *, swa_full: bool) -> MemoryLayout:
    """Kinds for layers with these windows (0 for none).

    A window that holds the whole context, and with `swa_full` any, keeps all tokens and needs no kind of its own.
    """
    sizes = [0 if swa_full or window >= n_ctx > 0 else window for window in windows]
    kinds = []
    for size in sorted(set(sizes)):
        layers = tuple(i for i, window in enumerate(sizes) if window == size)
        kinds.append(Kind("window" if size else "full", layers, size, replace(layout, n_layer=len(layers))))
    return MemoryLayout(tuple(kinds))
