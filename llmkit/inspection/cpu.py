"""Which paths were chosen on this machine: instruction set, threads, caches, versions. Imports Numba."""

from __future__ import annotations

import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Cpu:
    """features: those of the CPU that a path needs; kernels: how many are compiled and kept."""

    name: str
    isa: str
    cpu_features: tuple[str, ...]
    n_threads: int
    numerics_id: str
    cache: str
    kernels: str
    n_kernels: int
    packed: str
    python: str
    numpy: str
    numba: str
    llvmlite: str


def cpu() -> Cpu:
    """What an engine that starts now would use."""
    import llvmlite
    import numba
    import numpy

    from llmkit.bench.machine import cpu_name
    from llmkit.engine.thread_team import default_threads
    from llmkit.files.cache_dir import cache_root
    from llmkit.kernels.kernel_cache import CACHE_FOLDER
    from llmkit.simd import target

    wanted = target.AVX512_VNNI | target.AVX2 | target.NEON_DOTPROD
    return Cpu(
        name=cpu_name(),
        isa=target.path(),
        cpu_features=tuple(sorted(wanted & target.features())),
        n_threads=default_threads(),
        numerics_id=target.NUMERICS_ID,
        cache=str(cache_root()),
        kernels=str(CACHE_FOLDER),
        n_kernels=sum(1 for _ in CACHE_FOLDER.rglob("*.nbi")),
        packed=str(cache_root() / "packed"),
        python=platform.python_version(),
        numpy=numpy.__version__,
        numba=numba.__version__,
        llvmlite=llvmlite.__version__,
    )
