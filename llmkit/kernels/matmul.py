"""Matrix product of packed weights and quantised activations: y = W x (+ bias) (+ y)."""

from __future__ import annotations

from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.work import MAX_PARTS, n_rows, take_part
from llmkit.simd.ops import arg, call_tile

# tile: address of the type's multiply; w: packed weights, tile_stride bytes a tile of 16 rows; x: groups
# of activations, group_bytes each; y: float32 rows, y_stride bytes a token; bias: float32 [n_rows] or 0;
# accumulate: 1 adds to y.
FIELDS = (
    "counter",
    "n_rows",
    "tile",
    "w",
    "tile_stride",
    "n_tiles",
    "n_blocks",
    "x",
    "group_bytes",
    "y",
    "y_stride",
    "bias",
    "accumulate",
)
TILE, W, TILE_STRIDE, N_TILES, N_BLOCKS, X, GROUP_BYTES, Y, Y_STRIDE, BIAS, ACCUMULATE = range(2, 13)

_CACHED_BYTES = 384 * 1024  # of activations that stay in a core's L2 cache while the weights pass by


@helper
def _multiply_groups(args, t, first_group, last_group, n_tokens):
    """One tile of weights against some groups of tokens."""
    tile, n_blocks, accumulate = arg(args, TILE), arg(args, N_BLOCKS), arg(args, ACCUMULATE)
    group_bytes, y_stride = arg(args, GROUP_BYTES), arg(args, Y_STRIDE)
    w = arg(args, W) + t * arg(args, TILE_STRIDE)
    bias = arg(args, BIAS)
    if bias != 0:
        bias += 64 * t
    y = arg(args, Y) + 64 * t
    for group in range(first_group, last_group):
        x = arg(args, X) + group * group_bytes
        call_tile(tile, w, x, y + 8 * group * y_stride, y_stride, n_blocks, bias, accumulate, n_tokens - 8 * group)


@helper
def _multiply_run(args, first, last, n_tokens):
    """Tiles first <= t < last against all tokens, as many groups at a time as a core's cache holds."""
    n_groups = (n_tokens + 7) // 8
    step = max(1, _CACHED_BYTES // arg(args, GROUP_BYTES))
    for group in range(0, n_groups, step):
        for t in range(first, last):
            _multiply_groups(args, t, group, min(group + step, n_groups), n_tokens)


@kernel
def matmul(args, thread, n_threads):
    """Each thread takes runs of tiles from its own part, so that it reads memory in order, then helps the others.

    Each element is computed whole by one thread, blocks in order.
    """
    n_tokens, n_tiles = n_rows(args), arg(args, N_TILES)
    parts = min(n_threads, MAX_PARTS)
    run = max(1, n_tiles // (8 * parts))
    if n_tokens == 0:
        return
    for k in range(parts):
        part = (thread + k) % parts
        start, end = n_tiles * part // parts, n_tiles * (part + 1) // parts
        while True:
            first = start + take_part(args, part, run)
            if first >= end:
                break
            _multiply_run(args, first, min(first + run, end), n_tokens)
