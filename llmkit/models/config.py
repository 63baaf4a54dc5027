"""Hyper-parameters of a model, read from GGUF metadata and checked: a file says anything it likes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmkit.errors import MetadataError, UnsupportedError
from llmkit.files.gguf_reader import GgufFile

MAX_LAYERS = 512
MAX_WIDTH = 1 << 20  # of any vector of a token
MAX_FLOAT32 = float(np.finfo(np.float32).max)
DAMAGED = "the file is damaged or was not written for this architecture"


@dataclass(frozen=True)
class Config:
    """What all families share. Names are GGUF's; `window` is 0 where every layer sees all tokens."""

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    norm_eps: float
    rope_freq_base: float
    rope_freq_scale: float
    attention_scale: float  # 0: the family's rule
    window: int = 0
    window_layers: tuple[bool, ...] = ()
    rope_freq_base_swa: float = 10000.0
    final_softcap: float = 0.0

    def is_window_layer(self, layer: int) -> bool:
        return self.window > 0 and self.window_layers[layer]


class _Reader:
    """Typed reads of `arch.key` with ranges."""

    def __init__(self, gguf: GgufFile, arch: str) -> None:
        self.gguf, self.arch = gguf, arch

    def bad(self, key: str, value: object, expected: str) -> MetadataError:
        return MetadataError(f"{self.gguf.path}: {self.arch}.{key} is {value}; {expected} is expected", DAMAGED)

    def count(self, key: str, high: int, default: int | None = None) -> int:
        """An integer in 1 .. high; an array whose values are all equal counts as one."""
        name = f"{self.arch}.{key}"
        if isinstance(self.gguf.metadata.get(name), np.ndarray):
            values = self.gguf.numbers(name)
            if values.size == 0 or np.any(values != values[0]):
                raise UnsupportedError(
                    f"{self.gguf.path}: {name} differs between layers, which llmkit does not run yet"
                )
            value = int(values[0])
        else:
            value = self.gguf.u32(name) if default is None else self.gguf.u32(name, default)
        if not 1 <= value <= high:
            raise self.bad(key, value, f"a number from 1 to {high}")
        return value

    def real(self, key: str, default: float | None = None, low: float = 0.0) -> float:
        """A float of at least `low` that a float32 can hold."""
        name = f"{self.arch}.{key}"
        value = self.gguf.f32(name) if default is None else self.gguf.f32(name, default)
        if not low <= value <= MAX_FLOAT32:
            raise self.bad(key, value, f"a number from {low:g} to {MAX_FLOAT32:g}")
        return value


def read_config(gguf: GgufFile, n_vocab: int) -> Config:
    """Reads and checks the metadata; MetadataError names the key, UnsupportedError what is not run."""
    arch = gguf.str("general.architecture")
    read = _Reader(gguf, arch)
    n_layer, n_embd = read.count("block_count", MAX_LAYERS), read.count("embedding_length", MAX_WIDTH)
    n_head = read.count("attention.head_count", n_embd)
    n_head_kv = read.count("attention.head_count_kv", n_head, n_head)
    if n_head % n_head_kv:
        raise read.bad("attention.head_count_kv", n_head_kv, f"a divisor of head_count {n_head}")
    window, layers = _window(gguf, arch, n_layer)
    return Config(
        arch=arch,
        n_vocab=n_vocab,
        n_ctx_train=read.count("context_length", 1 << 30),
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=read.count("feed_forward_length", MAX_WIDTH),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=_head_dim(read, n_embd, n_head),
        norm_eps=read.real("attention.layer_norm_rms_epsilon"),
        rope_freq_base=read.real("rope.freq_base", 10000.0, 1.0),
        rope_freq_scale=_freq_scale(gguf, read),
        attention_scale=read.real("attention.scale", 0.0),
        window=window,
        window_layers=layers,
        rope_freq_base_swa=read.real("rope.freq_base_swa", 10000.0, 1.0),
        final_softcap=read.real("final_logit_softcapping", 0.0),
    )


def _head_dim(read: _Reader, n_embd: int, n_head: int) -> int:
    """The size of a head, which K, V and the rotated part must share."""
    default = n_embd // n_head
    if "attention.key_length" not in read.gguf.metadata and n_embd % n_head and default == 0:
        raise read.bad("attention.head_count", n_head, f"a divisor of embedding_length {n_embd}")
    head_dim = read.count("attention.key_length", 1024, max(default, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        value = read.count(key, MAX_WIDTH, head_dim)
        if value != head_dim:
            raise read.bad(key, value, f"the key length {head_dim}")
    if head_dim % 2:
        raise read.bad("attention.key_length", head_dim, "an even number")
    return head_dim


def _freq_scale(gguf: GgufFile, read: _Reader) -> float:
    """1 / factor of linear RoPE scaling; a factor of 0 means none."""
    kind = gguf.str(f"{read.arch}.rope.scaling.type", "linear")
    old = read.real("rope.scale_linear", 0.0)
    factor = read.real("rope.scaling.factor", old)
    if kind == "none" or factor in (0.0, 1.0):
        return 1.0
    if kind != "linear":
        raise UnsupportedError(f"{gguf.path}: RoPE scaling {kind!r} is not supported yet", "linear scaling runs")
    return 1.0 / factor


def _window(gguf: GgufFile, arch: str, n_layer: int) -> tuple[int, tuple[bool, ...]]:
    """The sliding window and which layers have it: all but the last of every `pattern` (6) layers, or flags."""
    window = int(gguf.u32(f"{arch}.attention.sliding_window", 0)) if arch == "gemma3" else 0
    key = f"{arch}.attention.sliding_window_pattern"
    if window == 0:
        return 0, (False,) * n_layer
    if isinstance(gguf.metadata.get(key), int) or key not in gguf.metadata:
        n = gguf.u32(key, 6)
        return window, tuple(n == 0 or layer % n < n - 1 for layer in range(n_layer))
    flags = gguf.numbers(key)
    if flags.size != n_layer:
        raise MetadataError(f"{gguf.path}: {key} has {flags.size} entries; {n_layer} are expected", DAMAGED)
    return window, tuple(bool(flag) for flag in flags)
