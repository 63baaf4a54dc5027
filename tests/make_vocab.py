"""Tiny vocabularies for test models: byte-level BPE, SPM, and the one of llama.cpp's tests that only has ids.

Owns the metadata under `tokenizer.`. Each function takes the least number of tokens and pads with unused ones.
"""

import numpy as np

NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6

_BPE_MERGES = (
    "h e", "i n", "r e", "o n", "a t", "e r", "Ġ t", "Ġ a", "Ġt he", "o u", "e s", "Ġ s", "Ġ w", "n d", "o r", "Ġa nd",
    "e n", "i t", "i s", "in g", "a l", "Ġ o", "e d", "Ġ b", "Ġ c", "l l", "v er", "Ġ i", "Ġ f", "Ġ m", "Ġ d", "Ġ p",
    "Ġ 1", "Ġ 2", "Ċ Ċ", "Ġ Ġ", "ĠĠ ĠĠ", "o m", "l d", "ou ld", "t h", "th e",
)  # fmt: skip
_SPM_PIECES = (
    "▁t", "he", "in", "▁a", "re", "on", "▁the", "er", "at", "▁s", "nd", "▁w", "▁and", "▁o", "en", "it", "is", "ing",
    "▁b", "or", "es", "ed", "▁c", "ll", "▁i", "▁f", "▁m", "▁d", "▁p", "▁▁",
)  # fmt: skip


def byte_characters() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes as (bytes_to_unicode of GPT-2's encoder), by byte."""
    visible = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]


def bpe_vocab(n_vocab: int = 0) -> dict[str, object]:
    """A byte-level BPE vocabulary: 256 bytes, the merges, and `<|endoftext|>`, `<|im_start|>`, `<|im_end|>`."""
    known = byte_characters()
    merges = [pair for pair in _BPE_MERGES if "".join(pair.split(" ")) not in known]
    tokens = known + ["".join(pair.split(" ")) for pair in merges]
    types = [NORMAL] * len(tokens) + [CONTROL] * 3
    tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    end = tokens.index("<|endoftext|>")
    _pad(tokens, types, n_vocab)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }


def spm_vocab(n_vocab: int = 0) -> dict[str, object]:
    """An SPM vocabulary: `<unk>`, `<s>`, `</s>`, 256 byte tokens, then pieces and ASCII with falling scores."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    pieces = [*_SPM_PIECES, "▁", *(chr(byte) for byte in range(33, 127))]
    scores = [0.0] * len(tokens) + [-float(i) for i in range(len(pieces))]
    tokens += pieces
    types += [NORMAL] * len(pieces)
    _pad(tokens, types, n_vocab)
    scores += [-1e6] * (len(tokens) - len(scores))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, dtype=np.float32),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
    }


def ids_only_vocab(n_vocab: int) -> dict[str, object]:
    """What llama.cpp's tests write: ids without texts, `tokenizer.ggml.model = test`."""
    return {
        "tokenizer.ggml.model": "test",
        "tokenizer.ggml.tokens": [f"tok_{i}" for i in range(n_vocab)],
        "tokenizer.ggml.token_type": [NORMAL] * n_vocab,
        "tokenizer.ggml.scores": np.zeros(n_vocab, dtype=np.float32),
    }


def _pad(tokens: list[str], types: list[int], n_vocab: int) -> None:
    assert n_vocab == 0 or n_vocab >= len(tokens), f"this vocabulary needs {len(tokens)} tokens"
    n_unused = max(n_vocab - len(tokens), 0)
    tokens += [f"<unused{i}>" for i in range(n_unused)]
    types += [UNUSED] * n_unused
