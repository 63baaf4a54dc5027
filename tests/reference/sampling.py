"""The sampler's steps in llama.cpp's order, on sorted lists and float64.

Owns what a distribution looks like after top-k, top-p, min-p and temperature (in this order); draws nothing by itself:
the caller brings the random number. Ties between logits go to the lower id.
"""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Logits = NDArray[np.float64]


def log_softmax(logits: NDArray[np.floating]) -> Logits:
    """Over the last axis, by subtracting the maximum, in float64."""
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def greedy(logits: NDArray[np.floating]) -> int:
    """The id of the largest logit, the lowest such id."""
    return int(np.argmax(logits))


def top_k(ids: Ids, logits: Logits, k: int) -> tuple[Ids, Logits]:
    """The k largest, sorted; k <= 0 keeps all."""
    return (ids, logits) if k <= 0 else (ids[:k], logits[:k])


def top_p(ids: Ids, logits: Logits, p: float) -> tuple[Ids, Logits]:
    """The shortest head whose probabilities sum to at least p; p >= 1 keeps all, at least one stays."""
    if p >= 1:
        return ids, logits
    total, n = 0.0, 0
    for prob in np.exp(log_softmax(logits)):
        total += float(prob)
        n += 1
        if total >= p:
            break
    return ids[:n], logits[:n]


def min_p(ids: Ids, logits: Logits, p: float) -> tuple[Ids, Logits]:
    """Those whose probability is at least p times the largest; p <= 0 keeps all."""
    if p <= 0:
        return ids, logits
    keep = logits >= logits.max() + np.log(p)
    return ids[keep], logits[keep]


def temperature(ids: Ids, logits: Logits, temp: float) -> tuple[Ids, Logits]:
    """Divides by temp; temp <= 0 leaves only the first, which is the largest."""
    return (ids[:1], logits[:1]) if temp <= 0 else (ids, logits / temp)


def candidates(
    logits: NDArray[np.floating], temp: float, k: int = 0, p: float = 1.0, m: float = 0.0
) -> tuple[Ids, NDArray[np.float64]]:
    """(ids, probabilities) that may be drawn, most probable first: sort, top-k, top-p, min-p, temperature, softmax."""
    ids: Ids = np.argsort(-logits.astype(np.float64), kind="stable").astype(np.int64)
    values: Logits = logits.astype(np.float64)[ids]
    ids, values = temperature(*min_p(*top_p(*top_k(ids, values, k), p), m), temp)
    return ids, np.exp(log_softmax(values))


def pick(ids: Ids, probs: NDArray[np.float64], u: float) -> int:
    """The candidate in whose part of [0, 1) u falls."""
    return int(ids[min(int(np.searchsorted(np.cumsum(probs), u, side="right")), len(ids) - 1)])
