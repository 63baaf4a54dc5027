"""The files to write: where everything goes in them, and whether they may be written at all.

Owns the checks before the first byte. Knows nothing of what is written.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import OutputError
from ..files.gguf_cursor import shown
from ..files.gguf_reader import GgufFile
from ..files.gguf_writer import Layout, TensorShape, lay_out
from .plan import Plan


@dataclass(frozen=True)
class Output:
    """One file to write."""

    path: Path
    layout: Layout


def output_files(plan: Plan, paths: list[Path]) -> list[Output]:
    """The files of a plan, one for each of `paths`."""
    shapes: list[list[TensorShape]] = [[] for _ in paths]
    for tensor in plan.tensors:
        shapes[tensor.part].append(TensorShape(tensor.name, tensor.info.shape, tensor.type))
    files = zip(paths, plan.metadata, shapes, strict=True)
    return [Output(path, lay_out(metadata, tensors)) for path, metadata, tensors in files]


def check_outputs(gguf: GgufFile, files: Sequence[Output]) -> None:
    """OutputError when an output is one of the files that are read, by whatever name, or there is no room."""
    for file in files:
        if file.path.exists() and any(os.path.samefile(file.path, source) for source in gguf.paths):
            raise OutputError(
                f"input and output files are the same: {shown(file.path, 300)}", "Give the output another name."
            )
    folder = Path(os.path.realpath(files[0].path)).parent
    n_bytes = sum(file.layout.n_bytes for file in files)
    if not folder.is_dir():
        raise OutputError(f"{shown(folder, 300)}: there is no such folder", "Make it first.")
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise OutputError(
            f"{shown(files[0].path, 300)}: {n_bytes} bytes are needed and {free} are free", "Make room there."
        )
