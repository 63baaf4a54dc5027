"""The ceilings of this machine, measured: reading memory, byte dot products, float multiply-adds.

Owns the clock, the buffers and the threads. What the loops are made of is kernels/ceilings.py; what they mean for a
model is roofline.py.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from llmkit.kernels import ceilings
from llmkit.simd import target

READ_SIZE = 512 << 20
_READS = 5  # of which the fastest counts: a ceiling is what was possible
_PEAK_SECONDS = 0.02
_PEAKS = 3
# How Numba is told to compile for less than the machine has: each path is chosen when a process starts.
LOWERED = {
    "avx2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+avx,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.2"},
    "generic": {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""},
}
_PEAKS_AS_JSON = """
import json, sys
from llmkit.bench.machine import measure_peaks
from llmkit.simd import target
int8, f32 = measure_peaks(int(sys.argv[1]))
print(json.dumps({"n_threads": int(sys.argv[1]), "isa": target.path(), "int8_gop_s": int8, "f32_gflop_s": f32}))
"""


@dataclass(frozen=True)
class Ceilings:
    """What `n_threads` threads reach together: GB/s (10^9 bytes), GOP/s and GFLOP/s (a multiply-add is two)."""

    n_threads: int
    isa: str
    bandwidth_gb_s: float
    int8_gop_s: float
    f32_gflop_s: float


def cpu_name() -> str:
    """The processor as the operating system calls it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@cache
def measure_ceilings(n_threads: int) -> Ceilings:
    """All three, in about a second and 512 MiB; measured once for each number of threads."""
    bandwidth = measure_bandwidth(n_threads)
    return Ceilings(n_threads, target.path(), bandwidth, *measure_peaks(n_threads))


def measure_bandwidth(n_threads: int, n_bytes: int = READ_SIZE) -> float:
    """GB/s at which the threads read a buffer of `n_bytes`, each its own part."""
    part = n_bytes // n_threads // ceilings.READ_BYTES
    # Pages never written would all be one page of zeros, which is in the processor's cache.
    buffer = np.ones(part * n_threads * ceilings.READ_BYTES, np.uint8)
    address = buffer.ctypes.data
    parts = [address + i * part * ceilings.READ_BYTES for i in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool:
        seconds = [_together(pool, [_reader(place, part) for place in parts]) for _ in range(_READS)]
    return buffer.size / min(seconds) / 1e9


def _reader(address: int, n: int) -> Callable[[], object]:
    return lambda: ceilings.read_memory(address, n)


def measure_peaks(n_threads: int) -> tuple[float, float]:
    """GOP/s of byte dot products and GFLOP/s of float32 multiply-adds, operands in registers and first-level cache."""
    table = np.random.default_rng(0).integers(1, 100, ceilings.TABLE_BYTES, dtype=np.uint8)
    floats = np.linspace(0.5, 1.5, ceilings.TABLE_BYTES // 4, dtype=np.float32)
    vectors = ceilings.MAC_OPS * ceilings.n_sums(0)
    int8 = _peak(ceilings.int8_peak, table.ctypes.data, n_threads) * vectors * 64 / 1e9
    f32 = _peak(ceilings.fma_peak, floats.ctypes.data, n_threads) * vectors * 16 / 1e9
    return int8, f32


def _peak(loop: Callable[[int, int], object], table: int, n_threads: int) -> float:
    """Rounds a second of all threads together."""
    n = _rounds(loop, table)
    with ThreadPoolExecutor(n_threads) as pool:
        seconds = [_together(pool, [lambda: loop(table, n)] * n_threads) for _ in range(_PEAKS)]
    return n * n_threads / min(seconds)


def _rounds(loop: Callable[[int, int], object], table: int) -> int:
    """How many rounds take one thread about _PEAK_SECONDS."""
    n = 64
    while True:
        start = time.perf_counter()
        loop(table, n)
        seconds = time.perf_counter() - start
        if seconds > _PEAK_SECONDS / 4:
            return max(1, int(n * _PEAK_SECONDS / seconds))
        n *= 4


def _together(pool: ThreadPoolExecutor, jobs: list[Callable[[], object]]) -> float:
    """Seconds from the start of the first job to the end of the last."""
    start = time.perf_counter()
    for future in [pool.submit(job) for job in jobs]:
        future.result()
    return time.perf_counter() - start


def measure_other_paths(n_threads: int) -> list[dict[str, Any]]:
    """The peaks of the instruction sets below this machine's own: n_threads, isa, int8_gop_s, f32_gflop_s of each.

    A process each, because the instruction set is chosen once. Empty where there are none.
    """
    if target.path() not in ("avx512vnni", "avx2"):
        return []
    return [_other_path(n_threads, lowered) for name, lowered in LOWERED.items() if name != target.path()]


def _other_path(n_threads: int, lowered: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", _PEAKS_AS_JSON, str(n_threads)]
    done = subprocess.run(command, env={**os.environ, **lowered}, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
