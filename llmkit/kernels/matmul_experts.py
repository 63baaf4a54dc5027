"""Matrix products of many experts: rows sorted by expert (see experts.slots), so that a batch reads each expert once.

Each element is computed whole by one thread, blocks in order, as in `matmul`.
"""

from __future__ import annotations

from llmkit.kernels.experts import EXPERTS, N_CHOSEN
from llmkit.kernels.jit import helper, kernel
from llmkit.kernels.work import take
from llmkit.simd.ops import add, arg, call_tile, load_i64, mul, vload, vload_splat, vstore

# As matmul's; w: all experts' tiles one after another, n_tiles each; y and x: rows of slots; scales: float32 [experts]
# or 0, biases: float32 [experts][16 * n_tiles] or 0: y = W x * scale + bias.
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
    "scales",
    "biases",
    "slots",
    "n_expert",
)
TILE, W, TILE_STRIDE, N_TILES, N_BLOCKS, X, GROUP_BYTES, Y, Y_STRIDE, SCALES, BIASES, SLOTS, N_EXPERT = range(2, 15)

_CACHED_BYTES = 384 * 1024  # of activations that stay in a core's L2 cache while the weights pass by


@helper
def _scale(y, y_stride, n, scale, bias):
    """16 columns of n rows: y * scale + bias."""
    for row in range(n):
        at = y + row * y_stride
        v = mul(vload(at), vload_splat(scale))
        if bias != 0:
            v = add(v, vload(bias))
        vstore(at, v)


@helper
def _multiply(args, expert, t, first_group, last_group):
    """One tile of an expert's weights against some groups of its rows."""
    experts = arg(args, SLOTS) + EXPERTS
    first, n = load_i64(experts + 16 * expert), load_i64(experts + 16 * expert + 8)
    y_stride, n_blocks = arg(args, Y_STRIDE), arg(args, N_BLOCKS)
    w = arg(args, W) + (expert * arg(args, N_TILES) + t) * arg(args, TILE_STRIDE)
    bias, scale = arg(args, BIASES), arg(args, SCALES)
    if bias != 0:
        bias += 64 * (expert * arg(args, N_TILES) + t)
    tile_bias = bias
    if scale != 0:
        tile_bias = 0
    for group in range(first_group, last_group):
        x = arg(args, X) + (first // 8 + group) * arg(args, GROUP_BYTES)
        y = arg(args, Y) + (first + 8 * group) * y_stride + 64 * t
        call_tile(arg(args, TILE), w, x, y, y_stride, n_blocks, tile_bias, 0, n - 8 * group)
        if scale != 0:
            _scale(y, y_stride, min(8, n - 8 * group), scale + 4 * expert, bias)


@helper
def _multiply_run(args, expert, first, last):
    """A run of an expert's tiles against all its rows."""
    n_groups = (load_i64(arg(args, SLOTS) + EXPERTS + 16 * expert + 8) + 7) // 8
    step = max(1, _CACHED_BYTES // arg(args, GROUP_BYTES))
    for group in range(0, n_groups, step):
        for t in range(first, last):
            _multiply(args, expert, t, group, min(group + step, n_groups))


@kernel
def matmul_experts(args, _thread, n_threads):
    """An item is a run of tiles of one chosen expert."""
    slots, n_tiles = arg(args, SLOTS), arg(args, N_TILES)
    n_chosen = load_i64(slots + N_CHOSEN)
    chosen = slots + EXPERTS + 16 * arg(args, N_EXPERT)
    run = max(1, min(n_tiles, n_chosen * n_tiles // (8 * n_threads)))
    runs = (n_tiles + run - 1) // run
    while True:
        item = take(args, 1)
        if item >= n_chosen * runs:
            break
        first = item % runs * run
        _multiply_run(args, load_i64(chosen + 8 * (item // runs)), first, min(first + run, n_tiles))
