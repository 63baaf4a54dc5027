"""Measures how fast each tensor type is packed and multiplied on this machine, kernels alone.

Owns the sizes and the clock. For each type: bits of a weight in the file and in tiles; packing, in GB of the file a
second; one token (GEMV, weights streamed from memory) in GB of tiles a second; 512 tokens (GEMM) in 1e9 operations a
second, on 1 and 2 threads; and on 1 thread the share of the peak that byte dot products in registers reach.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir

from llmkit import report
from llmkit.cli import guarded
from llmkit.errors import UsageError
from llmkit.quants.registry import TYPES
from llmkit.simd import emitter as em
from llmkit.simd import target
from llmkit.simd.loop import emit_loop
from llmkit.simd.ops import call_kernel
from llmkit.simd.vector import operation
from scripts.bench.cpu_watch import CpuWatch
from tests.kernels.harness import Floats, address, aligned
from tests.kernels.weights import Weights

N_ROWS, N_COLS, N_TOKENS = 1536, 1024, 512
STREAMED_BYTES = 160 << 20  # of weights that one token passes by: more than any cache holds
N_SUMS = 12  # independent sums: enough to hide the latency of a dot product, few enough for 16 registers
NAMES = [name for name, *_ in TYPES.values()]
HEADERS = (
    *("type", "bpw file", "bpw tile", "memory", "pack GB/s"),
    *("GEMV GB/s", "2 threads", "GEMM GOP/s", "2 threads", "of peak"),
)
DIGITS = (3, 3, 2, 2, 1, 1, 0, 0, 2)
i64 = numba.types.int64


@operation(numba.types.void, i64, i64, i64)
def _dots(e: em.Emitter, n: Any, source: Any, out: Any) -> None:
    """n rounds of N_SUMS byte dot products that touch no memory."""
    codes, x = e.load(em.I8X64, source), e.load(em.I8X64, source, 64)

    def body(_i: Any, sums: list[Any]) -> list[Any]:
        return [e.dot_bytes(s, codes, x, True) for s in sums]

    start = [ir.Constant(em.I32X16, [i] * 16) for i in range(N_SUMS)]
    total = e.const(em.I32X16, 0)
    for s in emit_loop(e.b, n, start, body):
        total = e.b.add(total, s)
    e.store(total, out)


@numba.njit(nogil=True)
def _peak(n, source, out):
    _dots(n, source, out)


@numba.njit(nogil=True)
def _call(kernel, args, thread, n_threads):
    call_kernel(kernel, args, thread, n_threads)


def _together(n: int, work: Callable[[int], None]) -> None:
    """work(0) .. work(n - 1), each on a thread."""
    others = [threading.Thread(target=work, args=(i,)) for i in range(1, n)]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()


def _best(repeat: int, work: Callable[[], None]) -> float:
    """Seconds of the fastest of `repeat` runs."""
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


class Team:
    """Runs a kernel on n threads; called as tests.kernels.harness.run is."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def __call__(self, kernel: Any, fields: Sequence[str], n_rows: int, **values: Any) -> None:
        given = {**values, "counter": np.zeros(8, np.int64), "n_rows": np.array([n_rows], np.int64)}
        numbers = [given.get(name, 0) for name in fields]
        block = np.array([address(v) if isinstance(v, np.ndarray) else int(v) for v in numbers], np.int64)
        _together(self.n_threads, lambda i: _call(kernel.address, address(block), i, self.n_threads))


def register_peak() -> float:
    """1e9 operations a second of byte dot products in registers, one thread."""
    data, out, n = aligned(np.ones(128, np.uint8)), aligned(np.zeros(16, np.int32)), 500_000
    _peak(1, address(data), address(out))
    return n * N_SUMS * 128 / _best(5, lambda: _peak(n, address(data), address(out))) / 1e9


def _inputs(n_tokens: int) -> Floats:
    return np.random.default_rng(0).normal(size=(n_tokens, N_COLS)).astype(np.float32)


def _gemv_seconds(weights: Weights) -> list[float]:
    """Seconds for one token on 1 and on 2 threads; the tiles are repeated until no cache holds them."""
    small, n_tiles, copies = weights.tiles, weights.n_tiles, -(-STREAMED_BYTES // weights.tiles.nbytes)
    weights.tiles, weights.n_tiles = aligned(np.tile(small, copies)), n_tiles * copies
    x, y = weights.quantize(_inputs(1)), aligned(np.zeros((8, 16 * weights.n_tiles), np.float32))
    seconds = [_best(5, lambda n=n: weights.multiply(x, y, 1, Team(n))) / copies for n in (1, 2)]
    weights.tiles, weights.n_tiles = small, n_tiles
    return seconds


def _gemm_seconds(weights: Weights) -> list[float]:
    """Seconds for N_TOKENS tokens on 1 and on 2 threads."""
    x = weights.quantize(_inputs(N_TOKENS))
    y = aligned(np.zeros((N_TOKENS, 16 * weights.n_tiles), np.float32))
    return [_best(7, lambda n=n: weights.multiply(x, y, N_TOKENS, Team(n))) for n in (1, 2)]


def measure(kind: str, peak: float) -> dict[str, Any]:
    """One type's row of the table."""
    weights = Weights(kind, N_ROWS, N_COLS)
    raw, tiles, n = weights.raw.nbytes, weights.tiles.nbytes, N_ROWS * N_COLS
    gemv, gemm = _gemv_seconds(weights), _gemm_seconds(weights)
    speeds = [2e-9 * N_TOKENS * n / seconds for seconds in gemm]
    return {
        "type": kind,
        "file_bpw": 8 * raw / n,
        "tile_bpw": 8 * tiles / n,
        "memory": tiles / raw,
        "pack_gb_s": raw / _best(3, weights.pack) / 1e9,
        "gemv_gb_s": tiles / gemv[0] / 1e9,
        "gemv_2_threads_gb_s": tiles / gemv[1] / 1e9,
        "gemm_gop_s": speeds[0],
        "gemm_2_threads_gop_s": speeds[1],
        "share_of_peak": speeds[0] / peak,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    name, *numbers = row.values()
    return [name, *(f"{number:.{digits}f}" for number, digits in zip(numbers, DIGITS, strict=True))]


def main(arguments: list[str] | None = None) -> int:
    """Measures the types that the command line names, or all."""
    args = _parser().parse_args(arguments)
    report.set_level(quiet=args.quiet)
    return guarded(lambda: _run(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench_kernels", description=__doc__)
    parser.add_argument("types", nargs="*", metavar="TYPE", help=f"{', '.join(NAMES)} [all]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    return parser


def _run(args: argparse.Namespace) -> int:
    wanted = [name.upper() for name in args.types] or NAMES
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        raise UsageError(f"there is no tensor type {unknown[0]!r} that runs", f"one of {', '.join(NAMES)}")
    watch, peak, rows = CpuWatch(), register_peak(), list[dict[str, Any]]()
    for kind in wanted:
        report.note(f"{kind} ...")
        rows.append(measure(kind, peak))
    others = watch.others()
    if args.json:
        report.result_json({"path": target.path(), "peak_gop_s": peak, "other_cores": others, "types": rows})
    else:
        report.result_table([_cells(row) for row in rows], HEADERS)
        report.result(f"{target.path()}: {peak:.0f} GOP/s of byte dot products in registers, 1 thread")
    if others is not None and others > 0.1:
        report.warning(f"other processes used {others:.2f} cores on average meanwhile")
    return 0


if __name__ == "__main__":
    sys.exit(main())
