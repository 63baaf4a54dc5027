"""Makes the models for benchmarks that no package has: SmolLM2 in other types, and random ones with K-quant rows.

The widths of small real models are no multiples of 256, so that they hold few K-quants: hence the random ones, of
1024 x 3072 and 16 layers. SmolLM2 goes back to F16 from its Q4_1, and from there through llama.cpp's llama-quantize.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from llmkit import report
from llmkit.cli import guarded
from llmkit.errors import UsageError
from llmkit.files.ggml_types import F16, F32
from llmkit.files.gguf_reader import GgufFile, open_gguf
from llmkit.files.gguf_tensors import TensorInfo
from llmkit.files.gguf_writer import TensorData, write_gguf
from scripts.bench.models import CONVERTED, GROUPS, K_AND_I_TYPES, RANDOM, expanded, find_model, made_path
from scripts.bench.peers import LLAMA_CPP, PeerError
from tests.make_models import make_model

FILE_TYPE_F16 = 1
RANDOM_SHAPE: dict[str, Any] = {
    "arch": "llama", "n_layer": 16, "n_embd": 1024, "n_ff": 3072, "n_head": 16, "n_head_kv": 8, "head_dim": 64,
    "n_vocab": 32000, "n_ctx_train": 8192, "tokenizer": "spm", "tied": True,
}  # fmt: skip
# The layers whose attn_v and ffn_down llama-quantize's Q4_K_M keeps in Q6_K (use_more_bits of llama-quant.cpp).
_N_LAYER = RANDOM_SHAPE["n_layer"]
_MORE_BITS = [i for i in range(_N_LAYER) if i < _N_LAYER // 8 or i >= 7 * _N_LAYER // 8 or (i - _N_LAYER // 8) % 3 == 2]
_TYPES: dict[str, dict[str, Any]] = {
    "random-q4_k_m": {
        "type": "Q4_K",
        "types": {f"blk.{i}.{name}": "Q6_K" for i in _MORE_BITS for name in ("attn_v", "ffn_down")}
        | {"token_embd": "Q6_K"},
    },
    # The embedding, and so the output matrix, in Q6_K, as llama-quantize makes it or nearly so.
    **{f"random-{name.lower()}": {"type": name, "types": {"token_embd": "Q6_K"}} for name in K_AND_I_TYPES},
}
_FILE_TYPES = {"random-q4_k_m": 15, "random-q6_k": 18}


def main(arguments: list[str] | None = None) -> int:
    """Makes what the command line names; returns the exit code."""
    args = _parser().parse_args(arguments)
    report.set_level(quiet=args.quiet)
    return guarded(lambda: _run(args))


def _parser() -> argparse.ArgumentParser:
    names = (*CONVERTED, *RANDOM)
    parser = argparse.ArgumentParser(
        prog="scripts/make_bench_models", description="Make the models that only benchmarks need, in the user's cache."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join((*names, *GROUPS))} [all]")
    parser.add_argument("--force", action="store_true", help="make again what is there")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    return parser


def _run(args: argparse.Namespace) -> int:
    known = (*CONVERTED, *RANDOM)
    names = expanded(args.names)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"there is no model {unknown[0]!r} to make", f"one of {', '.join(known)}")
    for name in names or known:
        path = made_path(name)
        if args.force or not path.is_file():
            report.note(f"making {name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            make(name, path)
        report.result(str(path))
    return 0


def make(name: str, path: Path) -> None:
    """Makes one model at `path`, which has its name only when it is whole."""
    if name in RANDOM:
        file_type = {"general.file_type": _FILE_TYPES[name]} if name in _FILE_TYPES else {}
        make_model(path, **RANDOM_SHAPE, **_TYPES[name], metadata={"general.name": name} | file_type)
    elif name == "smollm2-f16":
        to_f16(find_model("smollm2"), path)
    else:
        source = made_path("smollm2-f16")
        if not source.is_file():
            to_f16(find_model("smollm2"), source)
        quantize(source, path, name.rpartition("-")[2].upper())


def to_f16(source: Path, target: Path) -> None:
    """Copies a model with all its matrices as F16 and its vectors as F32."""
    with open_gguf(source) as gguf:
        metadata = {**gguf.metadata, "general.file_type": np.uint32(FILE_TYPE_F16)}
        write_gguf(target, metadata, [_as_f16(gguf, info) for info in gguf.tensors.values()])


def _as_f16(gguf: GgufFile, info: TensorInfo) -> TensorData:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    type, dtype = (F16, np.float16) if len(info.shape) > 1 else (F32, np.float32)

    def data() -> Any:
        rows = gguf.tensor_bytes(info.name).reshape(*reversed(info.shape[1:]), -1)
        return dequantize(rows, GGMLQuantizationType(info.type)).astype(dtype)

    return TensorData(info.name, info.shape, type, data)


def quantize(source: Path, target: Path, type: str) -> None:
    """llama.cpp's llama-quantize; PeerError when it fails."""
    temporary = target.with_suffix(".tmp")
    command = [str(LLAMA_CPP.program("llama-quantize")), str(source), str(temporary), type]
    done = subprocess.run(command, env=LLAMA_CPP.environment(), capture_output=True, text=True, errors="replace")
    if done.returncode:
        temporary.unlink(missing_ok=True)
        raise PeerError(f"llama-quantize ended with {done.returncode}", "\n".join(done.stderr.splitlines()[-3:]))
    temporary.replace(target)


if __name__ == "__main__":
    sys.exit(main())
