"""Where the K and V of a layer lie in a block of 32 cells, and how many bytes they take. Knows no sequences.

A block holds, for each layer, K as [kv_head][dim][cell] and V as [kv_head][cell][dim], so that scores have cells and
outputs dimensions as vector lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.memory.block_pool import BLOCK_CELLS

TYPE_CODES = {"f32": 0, "f16": 1}
_TYPE_BYTES = {"f32": 4, "f16": 2}


@dataclass(frozen=True)
class KvLayout:
    """Sizes and offsets within a block for `n_layer` equal layers. V's dimensions are filled up to a multiple of 16."""

    n_layer: int
    n_head_kv: int
    head_dim: int
    type_k: str
    type_v: str

    @property
    def v_dim(self) -> int:
        return -(-self.head_dim // 16) * 16

    @property
    def k_bytes(self) -> int:
        """Bytes of K of one layer."""
        n = self.n_head_kv * self.head_dim * BLOCK_CELLS * _TYPE_BYTES[self.type_k]
        return -(-n // 64) * 64

    @property
    def v_bytes(self) -> int:
        """Bytes of V of one layer."""
        return self.n_head_kv * self.v_dim * BLOCK_CELLS * _TYPE_BYTES[self.type_v]

    @property
    def block_bytes(self) -> int:
        return self.n_layer * (self.k_bytes + self.v_bytes)

    def k_offset(self, layer: int) -> int:
        return layer * (self.k_bytes + self.v_bytes)

    def v_offset(self, layer: int) -> int:
        return self.k_offset(layer) + self.k_bytes
