"""Where a matmul finds its activations: groups of 8 tokens, so that one address and constant offsets reach all of them.

F32      for each column: 8 float32.
Q8_32    for each 32 columns: 8 x 32 int8 codes; then of the 8 tokens: scale d (f32), minus the sum of the codes (i32),
         d times the sum of the codes (f32).
Q8_256   for each 256 columns: for each 32 columns 8 x 32 codes; then scale d of the 8 tokens (f32); for each 16 columns
         minus the sum of the codes (i32); for each 32 columns the sum of the codes (f32).

Codes are round(x * 127 / max|x|) over the block, so they lie in -127..127.
"""

GROUP = 8  # tokens

F32, Q8_32, Q8_256 = 0, 1, 2
NAMES = {F32: "f32", Q8_32: "q8_32", Q8_256: "q8_256"}
BLOCK = {F32: 1, Q8_32: 32, Q8_256: 256}
BLOCK_BYTES = {F32: 32, Q8_32: 352, Q8_256: 2848}

Q8_32_SCALE, Q8_32_NEG_SUM, Q8_32_SCALED_SUM = 256, 288, 320
Q8_256_SCALE, Q8_256_NEG_SUM, Q8_256_SUM = 2048, 2080, 2592


def group_bytes(kind: int, n_cols: int) -> int:
    """Bytes of one group of 8 tokens."""
    return n_cols // BLOCK[kind] * BLOCK_BYTES[kind]


def buffer_bytes(kind: int, n_cols: int, n_tokens: int) -> int:
    """Bytes for `n_tokens` tokens."""
    return -(-n_tokens // GROUP) * group_bytes(kind, n_cols)
