"""Finds a tensor type's kernels by its GGML id; a type's file is imported, and so compiled, only when it is met."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module

from llmkit.errors import UnsupportedError

# GGML type id -> (name, columns of a block, bytes of a block in the file)
TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}


@dataclass(frozen=True)
class QuantType:
    """A tensor type: sizes, and addresses of compiled code."""

    name: str
    block: int  # columns of a block in the file
    block_bytes: int
    tile_block: int  # columns of a block of a tile
    tile_bytes: int  # bytes of 16 rows x tile_block
    activation: int  # kind of kernels.activation_tile
    multiply: int  # address of a tile (jit.tile)
    pack: int  # address of a block function (jit.block): (source, tile block, row)
    dequantize: int  # address of a block function: (source, float32 target, 0)

    def row_bytes(self, n_cols: int) -> int:
        """Bytes of a row in the file."""
        return n_cols // self.block * self.block_bytes

    def packed_bytes(self, n_rows: int, n_cols: int) -> int:
        """Bytes of a whole matrix in tiles; rows are filled up to a multiple of 16."""
        return -(-n_rows // 16) * (n_cols // self.tile_block) * self.tile_bytes


@cache
def quant_type(type_id: int) -> QuantType:
    """The type with a GGML id; UnsupportedError names what runs."""
    if type_id not in TYPES:
        names = ", ".join(name for name, *_ in TYPES.values())
        raise UnsupportedError(f"tensor type {type_id} is not supported", f"types that run: {names}")
    name, block, block_bytes = TYPES[type_id]
    module = import_module(f"llmkit.quants.{name.lower()}")
    fmt = module.FORMAT
    return QuantType(
        name,
        block,
        block_bytes,
        fmt.block,
        fmt.tile_bytes,
        fmt.activation,
        module.multiply.address,
        module.pack.address,
        module.dequantize.address,
    )
