"""Finds a tensor type's kernels by its GGML id; a type's file is imported, and so compiled, only when it is met.

The sizes are here too, and compared then: what only counts bytes compiles nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

from llmkit.errors import UnsupportedError
from llmkit.kernels import activation_tile as at

# GGML type id -> (name, columns of a block, bytes of a block in the file, bytes of a tile's block, kind of activations)
TYPES = {
    0: ("F32", 1, 4, 64, at.F32),
    1: ("F16", 1, 2, 32, at.F32),
    2: ("Q4_0", 32, 18, 288, at.Q8_32),
    3: ("Q4_1", 32, 20, 320, at.Q8_32),
    6: ("Q5_0", 32, 22, 352, at.Q8_32),
    7: ("Q5_1", 32, 24, 384, at.Q8_32),
    8: ("Q8_0", 32, 34, 544, at.Q8_32),
    10: ("Q2_K", 256, 84, 1344, at.Q8_256),
    11: ("Q3_K", 256, 110, 1824, at.Q8_256),
    12: ("Q4_K", 256, 144, 2368, at.Q8_256),
    13: ("Q5_K", 256, 176, 2880, at.Q8_256),
    14: ("Q6_K", 256, 210, 3360, at.Q8_256),
    16: ("IQ2_XXS", 256, 66, 1696, at.Q8_256),
    17: ("IQ2_XS", 256, 74, 1696, at.Q8_256),
    18: ("IQ3_XXS", 256, 98, 2208, at.Q8_256),
    19: ("IQ1_S", 256, 50, 1184, at.Q8_256),
    20: ("IQ4_NL", 32, 18, 288, at.Q8_32),
    21: ("IQ3_S", 256, 110, 2208, at.Q8_256),
    22: ("IQ2_S", 256, 82, 1696, at.Q8_256),
    23: ("IQ4_XS", 256, 136, 2208, at.Q8_256),
    29: ("IQ1_M", 256, 56, 1248, at.Q8_256),
    30: ("BF16", 1, 2, 32, at.F32),
    34: ("TQ1_0", 256, 54, 1056, at.Q8_256),
    35: ("TQ2_0", 256, 66, 1056, at.Q8_256),
    39: ("MXFP4", 32, 17, 272, at.Q8_32),
    40: ("NVFP4", 64, 36, 576, at.Q8_32),
    41: ("Q1_0", 128, 18, 288, at.Q8_32),
    42: ("Q2_0", 64, 18, 288, at.Q8_32),
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


def type_sizes(type_id: int) -> QuantType:
    """The type with a GGML id, without its compiled code: the addresses are 0. UnsupportedError names what runs."""
    if type_id not in TYPES:
        names = ", ".join(name for name, *_ in TYPES.values())
        raise UnsupportedError(f"tensor type {type_id} is not supported", f"types that run: {names}")
    name, block, block_bytes, tile_bytes, activation = TYPES[type_id]
    return QuantType(name, block, block_bytes, block, tile_bytes, activation, 0, 0, 0)


@cache
def quant_type(type_id: int) -> QuantType:
    """The type with a GGML id, ready to run; UnsupportedError names what runs."""
    sizes = type_sizes(type_id)
    module = import_module(f"llmkit.quants.{sizes.name.lower()}")
    fmt = module.FORMAT
    assert (fmt.block, fmt.tile_bytes, fmt.activation) == (sizes.tile_block, sizes.tile_bytes, sizes.activation)
    return replace(
        sizes,
        multiply=module.multiply.address,
        pack=module.pack.address,
        dequantize=module.dequantize.address,
    )
