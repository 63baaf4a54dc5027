"""Where the K and V of a layer lie in a block of 32 cells, and how many bytes they take. Knows no sequences.

A block holds, layer after layer, K of all heads and then V of all heads. How 32 cells of one head lie is for their type
to say (kernels.kv_types).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from llmkit.errors import UsageError
from llmkit.kernels.kv_types.registry import TYPES, head_bytes, is_quantised
from llmkit.memory.block_pool import BLOCK_CELLS as BLOCK_CELLS

ROT_BLOCK = 64  # values that a rotation mixes at least


@dataclass(frozen=True)
class KvLayout:
    """Sizes and offsets within a block for `n_layer` equal layers. V's dimensions are filled up to a multiple of 16.

    rotated: whether quantised K and V are rotated (Hadamard) where the head's size allows it.
    UsageError for a type whose blocks of values do not divide a head.
    """

    n_layer: int
    n_head_kv: int
    head_dim: int
    type_k: str
    type_v: str
    rotated: bool = True

    def __post_init__(self) -> None:
        for what, name in (("keys", self.type_k), ("values", self.type_v)):
            n, _ = TYPES[name]
            if self.head_dim % n:
                message = f"{what} cannot be kept as {name}, which takes {n} values at a time: "
                message += f"the model's heads have {self.head_dim}"
                raise UsageError(message, f"choose f16, bf16 or f32 for {'-ctk' if what == 'keys' else '-ctv'}")

    @property
    def v_dim(self) -> int:
        return -(-self.head_dim // 16) * 16

    @property
    def n_rot_k(self) -> int:
        """Values of a head of q and k that are rotated together: the largest 64 * 2^n that divides it; 0 for none."""
        if not self._rotates(self.type_k):
            return 0
        return self.head_dim & -self.head_dim

    @property
    def n_rot_v(self) -> int:
        """The same for v."""
        return ROT_BLOCK if self._rotates(self.type_v) else 0

    def _rotates(self, name: str) -> bool:
        return self.rotated and is_quantised(name) and self.head_dim % ROT_BLOCK == 0

    @property
    def k_head_bytes(self) -> int:
        """Bytes of K of one head."""
        return head_bytes(self.type_k, self.head_dim)

    @property
    def v_head_bytes(self) -> int:
        """Bytes of V of one head."""
        return head_bytes(self.type_v, self.v_dim)

    @property
    def k_bytes(self) -> int:
        """Bytes of K of one layer."""
        return self.n_head_kv * self.k_head_bytes

    @property
    def v_bytes(self) -> int:
        """Bytes of V of one layer."""
        return self.n_head_kv * self.v_head_bytes

    @property
    def block_bytes(self) -> int:
        return self.n_layer * (self.k_bytes + self.v_bytes)

    def k_offset(self, layer: int) -> int:
        return layer * (self.k_bytes + self.v_bytes)

    def v_offset(self, layer: int) -> int:
        return self.k_offset(layer) + self.k_bytes


def rotation_wanted() -> bool:
    """Whether LLAMA_ATTN_ROT_DISABLE leaves the rotation on; the variable is a number, as llama.cpp reads it."""
    number = re.match(r"\s*[+-]?\d+", os.environ.get("LLAMA_ATTN_ROT_DISABLE", ""))
    return number is None or int(number[0]) == 0
