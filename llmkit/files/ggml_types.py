"""The tensor types that a GGUF file may name: id, name, block size, bytes per block.

Owns the table and the two sums that follow from it. Knows nothing about how a block is laid out (quants/) nor which
types llmkit computes with (models/). Ids and sizes are ggml's (ggml.h and ggml-common.h of llama.cpp b11434); the
`gguf` package has the same table, but importing it takes 0.3 s.
"""

from typing import NamedTuple


class GgmlType(NamedTuple):
    """One tensor type: `block_size` values are stored in `type_size` bytes."""

    id: int
    name: str
    block_size: int
    type_size: int


GGML_TYPES: dict[int, GgmlType] = {
    id: GgmlType(id, name, block_size, type_size)
    for id, name, block_size, type_size in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
        (42, "Q2_0", 64, 18),
    )
}

REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Ids that older files may hold and that ggml itself no longer reads."""

TYPE_IDS: dict[str, int] = {type.name: type.id for type in GGML_TYPES.values()}

F32 = TYPE_IDS["F32"]
F16 = TYPE_IDS["F16"]
BF16 = TYPE_IDS["BF16"]


def type_name(type_id: int) -> str:
    """ggml's name of a tensor type, or `type N` for an id that is not in the table."""
    known = GGML_TYPES.get(type_id)
    return known.name if known else REMOVED_TYPES.get(type_id, f"type {type_id}")


def row_bytes(type_id: int, n_values: int) -> int:
    """Bytes of a row of `n_values` values; `n_values` must be a multiple of the type's block size."""
    type = GGML_TYPES[type_id]
    assert n_values % type.block_size == 0, (type, n_values)
    return n_values // type.block_size * type.type_size
