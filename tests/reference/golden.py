"""Reading llama.cpp's stored logits and greedy texts.

Owns the two layouts of the shared test data; knows nothing about who compares what.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def read_golden(path: Path) -> tuple[list[int], NDArray[np.float32]]:
    """(ids, logits [n, n_vocab]) of one `golden/*.bin`: i32 n, i32 n_vocab, i32 ids[n], f32 logits."""
    raw = path.read_bytes()
    n, n_vocab = (int(value) for value in np.frombuffer(raw, "<i4", 2))
    ids = np.frombuffer(raw, "<i4", n, 8)
    logits = np.frombuffer(raw, "<f4", n * n_vocab, 8 + 4 * n)
    return ids.tolist(), logits.reshape(n, n_vocab)


@dataclass(frozen=True)
class GreedyText:
    """One prompt's ids, llama.cpp's greedy answer, and the log-probability that it gave each token of the answer."""

    prompt_ids: list[int]
    output_ids: list[int]
    logprobs: NDArray[np.float64]


def read_greedy(path: Path) -> dict[str, list[GreedyText]]:
    """By the model's name in the file, its prompts. The first of `top5` is the token that was taken."""
    texts: dict[str, list[GreedyText]] = {}
    for name, entries in json.loads(path.read_text()).items():
        texts[name] = []
        for entry in entries:
            best = [step[0] for step in entry["top5"]]
            assert [token for token, _ in best] == entry["output_ids"]
            logprobs = np.array([logprob for _, logprob in best])
            texts[name].append(GreedyText(entry["prompt_ids"], entry["output_ids"], logprobs))
    return texts
