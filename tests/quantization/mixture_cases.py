"""Models that are all shape and no weight, for what llama-quantize decides about their tensors.

Owns the cases and how a decision is written down: a letter for every tensor that is not left alone, in the order of
writing. `python -m tests.quantization.mixture_cases LLAMA_QUANTIZE` records `mixtures.json` with the real program.
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmkit.files.gguf_writer import TensorData, write_gguf
from llmkit.files.imatrix_file import Imatrix, ImatrixEntry, write_imatrix
from llmkit.quantization.file_types import FILE_TYPES
from tests.make_models import TinyModel, build

RECORDED = Path(__file__).with_name("mixtures.json")

# ggml's spelling and the letter in the record; `.` is a tensor that stays as it is.
_TYPES = (
    *("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K"),
    *("iq2_xxs", "iq2_xs", "iq3_xxs", "iq1_s", "iq4_nl", "iq3_s", "iq2_s", "iq4_xs", "iq1_m"),
    *("tq1_0", "tq2_0", "mxfp4", "q1_0", "q2_0"),
)
LETTERS = dict(zip(_TYPES, "fhb01568BCDEFGHIJKLMNOPQRST", strict=True))


@dataclass(frozen=True)
class MixtureCase:
    """A model, and flags of llama-quantize beside the file type. extra: more tensors, by name; drop: parts of names
    that are left out; types: those for which the case is recorded (all, if empty)."""

    arch: str
    n_layer: int = 16
    n_head: int = 8
    n_head_kv: int = 8
    n_expert: int = 0
    tied: bool = False
    n_embd: int = 256
    n_ff: int = 256
    imatrix: bool = False
    flags: tuple[str, ...] = ()
    extra: dict[str, tuple[int, ...]] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)


def _each(n: int, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"blk.{i}.{name}": shape for i in range(n)}


_KV_B = {**_each(16, "attn_kv_b.weight", (256, 2)), **_each(16, "attn_k_b.weight", (256, 2, 4))}
_ODD = {"blk.0.ffn_up.weight": (33, 4), "blk.1.ffn_up.weight": (1, 4), "blk.2.ffn_up.weight": (4544, 2),
        "blk.3.ffn_up.weight": (128, 2), "blk.4.ffn_up.weight": (256, 2, 3, 2)}  # fmt: skip
_FEW = ("Q4_K_M", "Q2_K", "Q8_0", "F16", "IQ3_S")
_DOWN_F16 = ("--tensor-type", "ffn_down=f16")
_LEFT_ALONE = (
    *("position_embd.weight", "token_types.weight", "blk.0.ssm_conv1d.weight", "blk.0.time_mix_w1.weight"),
    *("blk.0.altup_x.weight", "blk.0.attn_rel_b.weight", "v.patch_embd.weight", "a.rvq.codebook.weight"),
    *("blk.0.indexer.k_proj.weight", "blk.0.odd.bias", "blk.0.odd.weight", "weight", "blk.10.late.weight"),
)
_70B = ("Q2_K", "Q3_K_M", "Q4_K_M", "IQ3_M", "Q4_K_S", "Q3_K_S", "Q5_K_M")

CASES = {
    "dense": MixtureCase("llama"),
    "dense imatrix": MixtureCase("llama", imatrix=True),
    "dense gqa tied": MixtureCase("llama", n_head_kv=2, tied=True),
    "dense gqa imatrix": MixtureCase("llama", n_head_kv=2, imatrix=True),
    "dense 27 layers": MixtureCase("qwen3", n_layer=27, n_head_kv=2),
    "qkv": MixtureCase("phi3", n_layer=32),
    "falcon": MixtureCase("falcon", n_layer=32),
    "8 experts": MixtureCase("llama", n_expert=8),
    "8 experts gqa imatrix": MixtureCase("llama", n_head_kv=2, n_expert=8, imatrix=True),
    "4 experts": MixtureCase("qwen3moe", n_expert=4),
    "16 experts": MixtureCase("qwen3moe", n_head_kv=2, n_expert=16),
    "2 experts": MixtureCase("qwen3moe", n_expert=2),
    "kv_b": MixtureCase("llama", extra=_KV_B, drop=("attn_v", "attn_k.")),
    "70B": MixtureCase("llama", n_layer=80, n_head_kv=1, types=_70B),
    "65B": MixtureCase("llama", n_layer=80, types=_70B),
    "72B": MixtureCase("qwen2", n_layer=80, types=_70B),
    "odd rows": MixtureCase("llama", n_embd=96, n_ff=160, extra=_ODD),
    "rows of 128": MixtureCase("llama", n_embd=128, n_ff=384),
    "pure": MixtureCase("llama", flags=("--pure",)),
    "output left": MixtureCase("llama", flags=("--leave-output-tensor",), types=_FEW),
    "fixed types": MixtureCase(
        "llama", flags=("--output-tensor-type", "q5_0", "--token-embedding-type", "F16"), types=_FEW
    ),
    "tied output type": MixtureCase("llama", tied=True, flags=("--output-tensor-type", "q5_0"), types=_FEW),
    "by name": MixtureCase(
        "llama",
        flags=("--tensor-type", "attn_V=q8_0", "--tensor-type", r"blk\.[3-5]\.ffn=q2_k", *_DOWN_F16),
        types=_FEW,
    ),
    "by name, odd rows": MixtureCase("llama", n_embd=96, flags=("--tensor-type", "attn_v=q6_K"), types=_FEW),
    "pruned": MixtureCase("llama", flags=("--prune-layers", "3,1,9"), types=_FEW),
    "overridden": MixtureCase(
        "qwen3moe", n_expert=4, flags=("--override-kv", "qwen3moe.expert_count=int:8"), types=_FEW
    ),
    "two tables": MixtureCase(
        "gemma3",
        n_layer=8,
        extra={"per_layer_token_embd.weight": (256, 2)},
        drop=("output.weight",),
        flags=("--token-embedding-type", "q5_1", "--tensor-type", "per_layer=q4_1"),
        types=_FEW,
    ),
    "names left alone": MixtureCase("llama", n_layer=2, types=_FEW, extra=dict.fromkeys(_LEFT_ALONE, (256, 2))),
}


def write_case(case: MixtureCase, path: Path) -> None:
    """Write the model: every tensor has two rows of zeros, those of experts two for each."""
    model = TinyModel(
        arch=case.arch, n_layer=case.n_layer, n_head=case.n_head, n_head_kv=case.n_head_kv, head_dim=32,
        n_embd=case.n_embd, n_ff=case.n_ff, tied=case.tied, moe=bool(case.n_expert), n_expert=case.n_expert or 8,
        n_expert_used=2, window_pattern=(), metadata=case.metadata,
    )  # fmt: skip
    metadata, tensors = build(model)
    shapes = {t.name: t.shape for t in tensors if not any(part in t.name for part in case.drop)} | case.extra
    small = {name: (shape[0], *(2 for _ in shape[1:2]), *shape[2:]) for name, shape in shapes.items()}
    data = [TensorData(name, s, 0, np.zeros(int(np.prod(s)), np.float32)) for name, s in small.items()]
    write_gguf(path, metadata, data)


def write_importance(case: MixtureCase, path: Path) -> None:
    """An importance matrix, which only has to be there."""
    one = ImatrixEntry(np.ones((1, case.n_embd), np.float32), np.ones(1, np.float32))
    write_imatrix(path, Imatrix({"blk.0.attn_q.weight": one}, ["none"], 1, 512))


def types_of(case: MixtureCase) -> list[str]:
    """The file types of a case, aliases left out."""
    names = [t.name for t in FILE_TYPES if t.name not in ("Q3_K", "Q4_K", "Q5_K", "COPY")]
    return [name for name in names if not case.types or name in case.types]


def decided(program: str, case: MixtureCase, model: Path, imatrix: Path, type: str) -> str:
    """What the real program decides, in letters."""
    flags = [*case.flags, *(("--imatrix", str(imatrix)) if case.imatrix else ())]
    done = subprocess.run([program, "--dry-run", *flags, str(model), type], capture_output=True, text=True)
    if done.returncode:
        return "error: " + done.stderr.strip().splitlines()[-2].rpartition("quantize: ")[2]
    lines = [line for line in (done.stdout + done.stderr).splitlines() if re.match(r"\[ *\d+/", line)]
    found = [re.search(r"\((\w+)\)$", line) for line in lines]
    return "".join(LETTERS[f[1]] if f else "." for f in found)


def record(program: str) -> None:
    """Run the program for every case and file type."""
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        model, imatrix = Path(folder) / "m.gguf", Path(folder) / "i.gguf"
        for name, case in CASES.items():
            write_case(case, model)
            write_importance(case, imatrix)
            result[name] = {type: decided(program, case, model, imatrix, type) for type in types_of(case)}
    RECORDED.write_text(json.dumps(result, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record(sys.argv[1])
