"""Which instruction set kernels are compiled for.

Numba's own view decides, so that `NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` lower it for tests.
"""

from __future__ import annotations

import platform
from functools import cache

import llvmlite.binding as llvm
from numba.core import config

AVX512_VNNI = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512vnni", "fma", "f16c"})
AVX2 = frozenset({"avx2", "fma", "f16c"})
NEON_DOTPROD = frozenset({"neon", "dotprod"})

# Paths with one id give the same bits: integer dot products are exact and every float operation is IEEE,
# in an order that the layout fixes. Raise it when a kernel's order of operations changes.
NUMERICS_ID = "llmkit-1"


@cache
def features() -> frozenset[str]:
    """The CPU features Numba compiles for (LLVM's names)."""
    if config.CPU_FEATURES is not None:
        text = config.CPU_FEATURES
        return frozenset(name[1:] for name in text.split(",") if name.startswith("+"))
    if config.CPU_NAME not in (None, "", "host", llvm.get_host_cpu_name()):
        return frozenset()
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


@cache
def path() -> str:
    """`avx512vnni`, `avx2`, `neon` or `generic`."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return "neon" if NEON_DOTPROD <= features() else "generic"
    if machine not in ("x86_64", "amd64"):
        return "generic"
    if AVX512_VNNI <= features():
        return "avx512vnni"
    return "avx2" if AVX2 <= features() else "generic"
