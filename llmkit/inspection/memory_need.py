"""How much memory a model takes with a context: weights as they are mapped, keys and values by kind, activations.

Counts what the engine would take; a test compares with an engine that took it. Address space that is reserved and not
yet written (of keys and values that did not come) counts as taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.kinds import memory_layout
from llmkit.memory.kv_layout import KvLayout
from llmkit.models.config import Config
from llmkit.models.outline import Outlined


@dataclass(frozen=True)
class KvNeed:
    """Keys and values of the layers of one kind: `full`, or `window` with its size."""

    kind: str
    window: int
    n_layer: int
    n_cells: int
    n_bytes: int


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes. packed: matrices as tiles, mapped from the cache and shared by processes; tables: rows of the file that
    are read in place; vectors: norms and biases; activations: for passes of n_ubatch tokens.
    """

    n_ctx: int
    n_ubatch: int
    type_k: str
    type_v: str
    packed: int
    tables: int
    vectors: int
    kv: tuple[KvNeed, ...]
    activations: int

    @property
    def total(self) -> int:
        return self.packed + self.tables + self.vectors + sum(kv.n_bytes for kv in self.kv) + self.activations


def memory_need(model: Outlined, n_ctx: int, n_ubatch: int, type_k: str, type_v: str) -> MemoryNeed:
    """For a context of n_ctx tokens (0: as trained)."""
    n_ctx = n_ctx or model.config.n_ctx_train
    n_rows = -(-min(n_ubatch, n_ctx) // 8) * 8
    return MemoryNeed(
        n_ctx=n_ctx,
        n_ubatch=n_ubatch,
        type_k=type_k,
        type_v=type_v,
        packed=model.packed_bytes,
        tables=model.table_bytes,
        vectors=model.weights.kept_bytes,
        kv=_kv(model.config, n_ctx, n_rows, type_k, type_v),
        activations=model.outline.arena_bytes(model.logits, n_rows),
    )


def _kv(config: Config, n_ctx: int, n_ubatch: int, type_k: str, type_v: str) -> tuple[KvNeed, ...]:
    """One sequence that fills the context: layers with a window keep it and the tokens that are being computed."""
    layout = KvLayout(config.n_layer, config.n_head_kv, config.head_dim, type_k, type_v)
    found = []
    for kind in memory_layout(config.windows, layout, n_ctx, swa_full=False).kinds:
        n_blocks = kind.n_blocks(n_ctx, n_ubatch)
        n_bytes = n_blocks * kind.layout.block_bytes
        found.append(KvNeed(kind.name, kind.window, kind.layout.n_layer, n_blocks * BLOCK_CELLS, n_bytes))
    return tuple(found)
