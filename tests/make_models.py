"""Makes tiny models with random weights, complete GGUF files, in well under a second each.

Owns the sizes and the values; `make_archs` says which keys and tensors an architecture's files have. The same TinyModel
always gives the same bytes; a tensor's values depend only on the seed, its name, shape and type.

    make_model(tmp_path / "m.gguf", arch="qwen3", type="Q4_K", n_embd=256, n_ff=512)
    metadata, tensors = build(TinyModel(arch="llama"))        # to break something before write_gguf
    python -m tests.make_models big.gguf n_layer=16 n_embd=1024 n_ff=3072 n_head=16 n_head_kv=8 head_dim=64 type=Q4_K
"""

import os
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmkit.files.ggml_types import GGML_TYPES, TYPE_IDS
from llmkit.files.gguf_writer import TensorData, write_gguf
from tests.make_archs import hyperparameters, shapes
from tests.make_blocks import Bytes, random_tensor
from tests.make_vocab import bpe_vocab, ids_only_vocab, spm_vocab


@dataclass(frozen=True)
class TinyModel:
    """What to make. `n_embd`, `n_ff` and n_head * head_dim must be multiples of the block size: 32, K-quants 256.

    `n_vocab` 0 means what the vocabulary needs (128 without texts). `tokenizer` is `test` (ids only), `bpe`, `spm` or
    `none`. `types` overrides `type` for matrices whose name contains the key, such as {"attn_v": "Q6_K"}. `tied` leaves
    out `output.weight`. `window` and `window_pattern` (1 for a window layer) are of architectures with windows,
    `n_expert` and `n_expert_used` of mixtures; `moe` makes a mixture of an architecture that may be one. `metadata` is
    laid over the rest; a value of None takes a key away.
    """

    arch: str = "llama"
    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ff: int = 128
    n_vocab: int = 0
    n_ctx_train: int = 256
    type: str = "F32"
    types: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str = "test"
    tied: bool = False
    moe: bool = False
    n_expert: int = 8
    n_expert_used: int = 3
    window: int = 32
    window_pattern: tuple[int, ...] = ()
    rope_freq_base: float = 10000.0
    seed: int = 0
    metadata: Mapping[str, object] = field(default_factory=dict)

    @property
    def n_rot(self) -> int:
        """The dimensions of a head that are rotated."""
        n_rot = self.metadata.get(f"{self.arch}.rope.dimension_count")
        return n_rot if isinstance(n_rot, int) else self.head_dim


def make_model(path: str | os.PathLike[str], model: TinyModel | None = None, **changes: Any) -> Path:
    """Write the model (default: TinyModel()) with the given fields changed; returns the path."""
    metadata, tensors = build(replace(model or TinyModel(), **changes))
    write_gguf(path, metadata, tensors)
    return Path(path)


def build(model: TinyModel) -> tuple[dict[str, object], list[TensorData]]:
    """Metadata and tensors of a model, ready for write_gguf. Tensor data are functions, called when written."""
    vocab = _vocab(model)
    tokens = vocab.get("tokenizer.ggml.tokens", ())
    n_vocab = max(len(tokens), model.n_vocab) or 128  # type: ignore[arg-type]
    metadata = {**hyperparameters(model, n_vocab), **vocab, **model.metadata}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return metadata, [_tensor(model, name, shape) for name, shape in shapes(model, n_vocab).items()]


def _vocab(model: TinyModel) -> dict[str, object]:
    if model.tokenizer == "none":
        return {}
    if model.tokenizer == "test":
        return ids_only_vocab(model.n_vocab or 128)
    return {"bpe": bpe_vocab, "spm": spm_vocab}[model.tokenizer](model.n_vocab)


def _tensor(model: TinyModel, name: str, shape: tuple[int, ...]) -> TensorData:
    type = model.type
    for part, other in model.types.items():
        type = other if part in name else type
    small = len(shape) == 1 or "norm" in name or name.endswith(".bias") or "ffn_gate_inp" in name
    type = "F32" if small else type
    assert shape[0] % GGML_TYPES[TYPE_IDS[type]].block_size == 0, f"{name}: rows of {shape[0]} do not fit {type}"
    return TensorData(name, shape, TYPE_IDS[type], lambda: _values(model.seed, name, shape, type))


def _values(seed: int, name: str, shape: tuple[int, ...], type: str) -> Bytes:
    """Norm weights lie around 1, biases around 0, rows are spread so that a product keeps the size of its input."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if "norm" in name and name.endswith(".weight"):
        return (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32).reshape(-1).view(np.uint8)
    if name.startswith("rope_f"):
        return (1 + 3 * rng.random(shape)).astype(np.float32).view(np.uint8)
    std = 0.1 if len(shape) == 1 else float(np.clip(shape[0] ** -0.5, 0.02, 0.1))
    return random_tensor(rng, shape, type, std)


def _main(arguments: list[str]) -> None:
    """`path field=value ...`: numbers where the field is one."""
    fields = dict(argument.split("=", 1) for argument in arguments[1:])
    changes: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in fields.items()}
    make_model(arguments[0], replace(TinyModel(), **changes))


if __name__ == "__main__":
    _main(sys.argv[1:])
