"""KV types by name: sizes without compiling anything, functions when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module

BLOCK_CELLS = 32

# Name, as -ctk and -ctv take it -> (values of a block, bytes of a block). Blocks of 32 are quantised, along a head.
TYPES = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}


@dataclass(frozen=True)
class KvType:
    """Addresses of a type's compiled functions (jit.cells)."""

    load_k: int
    load_v: int
    store_k: int
    store_v: int


@cache
def kv_type(name: str) -> KvType:
    """The functions of a type, compiled when this is the first to ask."""
    module = import_module(f"llmkit.kernels.kv_types.{name}")
    return KvType(*(getattr(module, function).address for function in ("load_k", "load_v", "store_k", "store_v")))


def is_quantised(name: str) -> bool:
    """Whether values have a scale in common."""
    return TYPES[name][0] > 1


def head_bytes(name: str, n_dims: int) -> int:
    """Bytes of 32 cells of one head with n_dims values."""
    values, n_bytes = TYPES[name]
    return BLOCK_CELLS * n_dims // values * n_bytes


def hadamard_address() -> int:
    """What rotates the values of quantised types, compiled when this is the first to ask."""
    return int(import_module("llmkit.kernels.kv_types.hadamard").hadamard.address)
