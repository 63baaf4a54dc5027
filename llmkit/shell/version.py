"""What `llmkit --version` says: the versions that decide what is computed, and the path chosen for this CPU.

Imports neither Numba nor llvmlite, which would take longer than the answer may: versions come from the packages'
metadata, the CPU's features from the system. The rule of choosing is llmkit/simd/target.py's; a test holds both equal.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from llmkit import __version__

_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "fma", "f16c")
_AVX2 = ("avx2", "fma", "f16c")
_NEON = ("neon", "dotprod")
_SPELLINGS = {"avx512_vnni": "avx512vnni", "asimd": "neon", "asimddp": "dotprod"}  # Linux's names, and LLVM's


def version_text() -> str:
    """Several lines; the first is llmkit's own."""
    rows = [("python", platform.python_version())]
    rows += [(name, _version_of(name)) for name in ("numba", "llvmlite", "numpy")]
    path, features = cpu_path()
    rows.append(("cpu", f"{path}, with {' '.join(features)}" if features else path))
    return "\n".join([f"llmkit {__version__}", *(f"{name:<9}{text}" for name, text in rows)])


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def cpu_path() -> tuple[str, list[str]]:
    """The path that kernels are compiled for, and which of the features that paths need are there."""
    features = _features()
    shown = sorted(features & {*_AVX512, *_AVX2, *_NEON})
    if platform.machine().lower() in ("aarch64", "arm64"):
        return ("neon" if features >= set(_NEON) else "generic"), shown
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "generic", shown
    return ("avx512vnni" if features >= set(_AVX512) else "avx2" if features >= set(_AVX2) else "generic"), shown


def _features() -> set[str]:
    """LLVM's names of the features that Numba compiles for; NUMBA_CPU_FEATURES and NUMBA_CPU_NAME lower them."""
    if (lowered := os.environ.get("NUMBA_CPU_FEATURES")) is not None:
        return {name[1:] for name in lowered.split(",") if name.startswith("+")}
    if os.environ.get("NUMBA_CPU_NAME", "host") not in ("", "host"):
        return _asked_of_llvm()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _asked_of_llvm()
    for line in text.splitlines():
        name, _, words = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return {_SPELLINGS.get(word, word) for word in words.split()}
    return _asked_of_llvm()


def _asked_of_llvm() -> set[str]:
    """Where the system does not tell: slower, but llvmlite alone without Numba."""
    import llvmlite.binding as llvm

    if os.environ.get("NUMBA_CPU_NAME", "host") not in ("", "host", llvm.get_host_cpu_name()):
        return set()
    return {name for name, present in llvm.get_host_cpu_features().items() if present}
