"""Vocabularies for the tokenizer's tests, written as GGUF files and opened again.

Owns short names for metadata keys. A file is deleted as soon as it is open; what was read stays mapped.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmkit.files.gguf_reader import GgufFile, open_gguf
from llmkit.files.gguf_writer import write_gguf
from llmkit.tokenizer import Tokenizer, load_tokenizer
from tests.make_vocab import BYTE, CONTROL, NORMAL, UNKNOWN, byte_characters

USER_DEFINED = 4
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
KEY = "tokenizer.ggml."


def opened(metadata: Mapping[str, object]) -> GgufFile:
    """A GGUF file with this metadata."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        write_gguf(path, {"general.architecture": "llama", **metadata})
        return open_gguf(path)


def loaded(metadata: Mapping[str, object], cache_dir: Path | None = None) -> Tokenizer:
    """The tokenizer of a file with this metadata."""
    return load_tokenizer(opened(metadata), cache_dir)


def spm_metadata(pieces: Sequence[str], scores: Sequence[float] = (), **keys: Any) -> dict[str, object]:
    """`<unk>`, `<s>`, `</s>`, the byte tokens and `pieces`, whose scores fall in order where none are given.

    Keywords add or replace keys under `tokenizer.ggml.`; one that is None removes its key.
    """
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, *pieces]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    falling = [-float(i) for i in range(len(pieces))]
    metadata: dict[str, object] = {
        KEY + "model": "llama",
        KEY + "tokens": tokens,
        KEY + "scores": np.array([0.0] * 259 + list(scores or falling), dtype=np.float32),
        KEY + "token_type": np.array(types, dtype=np.int32),
    }
    return changed(metadata, keys)


def bpe_metadata(merges: Sequence[tuple[str, str]] = (), more: Sequence[str] = (), **keys: Any) -> dict[str, object]:
    """The 256 byte characters, what the merges make, then `more` (control tokens), under the pre-tokenizer gpt-2."""
    made = dict.fromkeys(left + right for left, right in merges)
    words = byte_characters() + [word for word in made if word not in byte_characters()]
    metadata: dict[str, object] = {
        KEY + "model": "gpt2",
        KEY + "pre": "gpt-2",
        KEY + "tokens": [*words, *more],
        KEY + "token_type": np.array([NORMAL] * len(words) + [CONTROL] * len(more), dtype=np.int32),
        KEY + "merges": [f"{left} {right}" for left, right in merges],
    }
    return changed(metadata, keys)


def changed(metadata: dict[str, object], keys: Mapping[str, Any]) -> dict[str, object]:
    """`metadata` with other values under `tokenizer.ggml.KEY`, or without a key where the value is None."""
    full = {(key if "." in key else KEY + key): value for key, value in keys.items()}
    return {key: value for key, value in {**metadata, **full}.items() if value is not None}
