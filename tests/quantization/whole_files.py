"""Whole files that llama-quantize wrote, by their SHA-256.

Owns the sources, whose weights are made of integers so that they are the same everywhere, and the cases. `python -m
tests.quantization.whole_files LLAMA_QUANTIZE` records `whole_files.json` with the real program.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmkit.files.gguf_writer import TensorData, write_gguf
from llmkit.files.imatrix_file import Imatrix, ImatrixEntry, write_imatrix
from llmkit.quantization.file_types import FILE_TYPES
from tests.make_models import TinyModel, build

RECORDED = Path(__file__).with_name("whole_files.json")

MODELS = {
    "dense.gguf": TinyModel(n_layer=2, n_embd=256, n_ff=384, n_head=4, n_head_kv=1, head_dim=64, tokenizer="bpe"),
    "moe.gguf": TinyModel(
        arch="qwen3moe", n_layer=2, n_embd=256, n_ff=256, n_head=4, n_head_kv=4, head_dim=64, moe=True, n_expert=4
    ),
    "bf16.gguf": TinyModel(n_layer=1, n_embd=256, n_ff=256, n_head=4, n_head_kv=2, head_dim=64, tied=True, type="BF16"),
    "half.gguf": TinyModel(n_layer=1, n_embd=96, n_ff=96, n_head=4, n_head_kv=2, head_dim=24, type="F16"),
}
TYPES = tuple(t.name for t in FILE_TYPES if t.name not in ("Q3_K", "Q4_K", "Q5_K"))
LOW = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ3_XXS", "IQ3_XS", "Q2_K_S")
"""IQ1_M is left out: what llama-quantize writes there depends on the compiler (sums fused or not); the type's own tests
compare it with a portable build."""
_SOME = ("Q4_K_M", "Q4_0", "Q8_0", "F16", "IQ4_XS", "COPY")
_IMATRIX = (*LOW, "Q2_K", "Q3_K_M", "Q5_K_S", "Q6_K", "Q4_0", "IQ4_NL", "IQ3_S", "MXFP4_MOE", "Q8_0")

# By name: the source, the arguments before it, the file types.
CASES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "dense": ("dense.gguf", (), tuple(t for t in TYPES if t not in (*LOW, "Q1_0", "IQ1_M"))),
    "moe": ("moe.gguf", (), ("MXFP4_MOE", "Q1_0", *_SOME)),
    "bf16": ("bf16.gguf", (), _SOME),
    "half": ("half.gguf", (), _SOME),
    "dense imatrix": ("dense.gguf", ("--imatrix", "dense.imatrix"), ("IQ2_S", "Q2_K_S", "Q4_K_M", "Q4_0", "Q5_1")),
    "moe imatrix": ("moe.gguf", ("--imatrix", "moe.imatrix"), _IMATRIX),
    "moe legacy imatrix": ("moe.gguf", ("--imatrix", "moe.dat"), ("IQ2_XS", "Q4_K_M", "Q4_0")),
    "some weights": (
        "dense.gguf",
        ("--imatrix", "dense.imatrix", "--include-weights", "ffn", "--include-weights", "attn_q"),
        ("Q4_K_M",),
    ),
    "not these weights": ("dense.gguf", ("--imatrix", "dense.imatrix", "--exclude-weights", "ffn"), ("Q4_K_M",)),
    "metadata": (
        "dense.gguf",
        (*("--override-kv", "a.b=int:-7", "--override-kv", "general.name=str:other"),
         *("--override-kv", "c=float:1.5", "--override-kv", "d=bool:true")),
        ("Q8_0", "COPY"),
    ),
    "pruned": ("dense.gguf", ("--prune-layers", "0", "--imatrix", "dense.imatrix"), ("Q4_K_M",)),
    "small buffer": ("moe.gguf", ("--max-buffer-size", "1"), ("Q4_K_M",)),
    "requantized": ("half.gguf", ("--allow-requantize", "--output-tensor-type", "q5_1", "--pure"), ("Q4_0",)),
}  # fmt: skip


def numbers(name: str, n: int) -> NDArray[np.float32]:
    """n values from -1 to 1 that depend on the name, exact in any arithmetic; heavier around 0."""
    start = np.uint64(zlib.crc32(name.encode()))
    with np.errstate(over="ignore"):
        bits = (np.arange(n, dtype=np.uint64) + start) * np.uint64(0x9E3779B97F4A7C15)
        bits ^= bits >> np.uint64(29)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
    parts = [(bits >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.float32) / 32768 - 1 for shift in (0, 16)]
    return np.asarray(parts[0] * parts[1], np.float32)


def write_sources(folder: Path) -> None:
    """All models and importance matrices."""
    for name, model in MODELS.items():
        metadata, tensors = build(model)
        write_gguf(folder / name, metadata, [_tensor(t) for t in tensors])
        entries = {t.name: _importance(t) for t in tensors if len(t.shape) > 1 and "embd" not in t.name}
        entries.pop("output.weight", None)
        imatrix = Imatrix(entries, ["text.txt", "other.txt"], 3, 64)
        write_imatrix(folder / name.replace(".gguf", ".imatrix"), imatrix)
        write_imatrix(folder / name.replace(".gguf", ".dat"), replace(imatrix, is_legacy=True))


def _tensor(tensor: TensorData) -> TensorData:
    values = numbers(tensor.name, int(np.prod(tensor.shape))) * np.float32(0.125)
    data = {
        0: lambda: values,
        1: lambda: values.astype(np.float16),
        30: lambda: (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16),
    }[tensor.type]
    return replace(tensor, data=data())


def _importance(tensor: TensorData) -> ImatrixEntry:
    """Squares with a few zeros; the second of several experts saw nothing."""
    n_mat = tensor.shape[2] if len(tensor.shape) > 2 else 1
    sums = np.abs(numbers("i" + tensor.name, n_mat * tensor.shape[0])).reshape(n_mat, -1) * np.float32(50)
    counts = np.full(n_mat, 130, np.float32)
    sums[:, 3:6] = 0
    if n_mat > 1:
        counts[1] = sums[1] = 0
    return ImatrixEntry(sums, counts)


def digest(path: Path) -> str:
    """The beginning of the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def record(program: str) -> None:
    """Run the program for every case and file type."""
    result: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sources(folder)
        for case, (source, flags, types) in CASES.items():
            result[case] = {}
            for type in types:
                (folder / "out.gguf").unlink(missing_ok=True)
                done = subprocess.run([program, *flags, source, "out.gguf", type], capture_output=True, cwd=folder)
                result[case][type] = digest(folder / "out.gguf") if not done.returncode else "error"
    RECORDED.write_text(json.dumps(result, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record(sys.argv[1])
