"""The sampler's steps in llama.cpp's order, on sorted lists and float64.

Owns what a distribution looks like after the steps; draws nothing by itself: the caller brings the random number. Ties
between logits go to the lower id.
"""

import math
from collections.abc import Sequence
from typing import Any

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


# The steps of the whole chain, on (id, logit) pairs that are sorted best first, ties to the lower id.

Pairs = list[tuple[int, float]]


def ranked(pairs: Pairs) -> Pairs:
    """Best first; those of logit -inf go."""
    return sorted(((i, x) for i, x in pairs if x > -math.inf), key=lambda pair: (-pair[1], pair[0]))


def softmax(pairs: Pairs) -> list[float]:
    """Their probabilities."""
    weights = [math.exp(x - pairs[0][1]) for _, x in pairs]
    return [w / sum(weights) for w in weights]


def penalised(pairs: Pairs, last: list[int], repeat: float, frequency: float, presence: float) -> Pairs:
    """Repetition, frequency and presence penalties for the tokens in `last`."""
    out = []
    for i, x in pairs:
        if i in last:
            x = x * repeat if x <= 0 else x / repeat
            x -= last.count(i) * frequency + presence
        out.append((i, x))
    return ranked(out)


def dry(
    pairs: Pairs, last: list[int], multiplier: float, base: float, allowed: int, breakers: list[list[int]]
) -> Pairs:
    """For each token, the longest repetition of an earlier part that would end before it, compared token by token.

    breakers: sequences of ids; the repetition cannot reach back to one, and one of a single token is not penalised.
    """
    n, limit = len(last), len(last)
    for start in range(n - 1, -1, -1):
        if lengths := [len(b) for b in breakers if last[start : start + len(b)] == b]:
            limit = n - start - max(lengths)
            break
    out = []
    for i, x in pairs:
        longest = -1
        for place in range(1, n):
            if last[place] == i:
                length = 0
                while length < min(limit, place) and last[place - 1 - length] == last[n - 1 - length]:
                    length += 1
                longest = max(longest, length)
        if longest >= allowed and n > allowed and [i] not in breakers:
            x -= multiplier * base ** (longest - allowed)
        out.append((i, x))
    return ranked(out)


def top_n_sigma(pairs: Pairs, n: float) -> Pairs:
    """Those within n standard deviations of the best."""
    mean = sum(x for _, x in pairs) / len(pairs)
    sigma = math.sqrt(sum((x - mean) ** 2 for _, x in pairs) / len(pairs))
    return [(i, x) for i, x in pairs if x >= pairs[0][1] - n * sigma]


def head(pairs: Pairs, order: list[int], p: float, above: bool, min_keep: int) -> Pairs:
    """The first of an order that together reach p (or exceed it); at least one, and min_keep."""
    probs, total, kept = softmax(pairs), 0.0, []
    for place in order:
        kept.append(pairs[place])
        total += probs[place]
        if (total > p if above else total >= p) and len(kept) >= min_keep:
            break
    return ranked(kept)


def typical(pairs: Pairs, p: float, min_keep: int = 0) -> Pairs:
    """Those whose surprise is closest to the entropy, ties to the lower id, until they exceed p."""
    probs = softmax(pairs)
    entropy = -sum(q * math.log(q) for q in probs if q > 0)
    oddness = [abs(-math.log(q) - entropy) if q > 0 else math.inf for q in probs]
    order = sorted(range(len(pairs)), key=lambda k: (oddness[k], pairs[k][0]))
    return head(pairs, order, p, True, min_keep)


def xtc(pairs: Pairs, threshold: float, min_keep: int = 0) -> Pairs:
    """All that reach the threshold go but the last of them."""
    n_probable = sum(q >= threshold for q in softmax(pairs))
    n_gone = max(n_probable - 1, 0)
    return pairs if len(pairs) - n_gone < min_keep else pairs[n_gone:]


def dynamic_temp(pairs: Pairs, temp: float, spread: float, exponent: float) -> float:
    """The temperature that the entropy asks for."""
    entropy = -sum(q * math.log(q) for q in softmax(pairs) if q > 0)
    low, high = max(0.0, temp - spread), temp + spread
    return low + (high - low) * (entropy / math.log(len(pairs))) ** exponent


def chain(
    logits: NDArray[np.floating], params: Any, last: Sequence[int] = (), *, xtc_acts: bool = False,
    breakers: Sequence[list[int]] = (),
) -> dict[int, float]:  # fmt: skip
    """{id: probability} after the steps that `params` (the fields of SamplingParams) asks for, in their order."""
    p, pairs = params, ranked(list(enumerate(logits.astype(np.float64).tolist())))
    recent = list(last)
    for name in p.samplers:
        if name == "penalties" and p.repeat_last_n:
            pairs = penalised(
                pairs, recent[-p.repeat_last_n :], p.repeat_penalty, p.frequency_penalty, p.presence_penalty
            )
        elif name == "dry" and p.dry_multiplier and p.dry_penalty_last_n:
            tokens = recent[-p.dry_penalty_last_n :]
            pairs = dry(pairs, tokens, p.dry_multiplier, p.dry_base, p.dry_allowed_length, list(breakers))
        elif name == "top_n_sigma" and p.top_n_sigma > 0:
            pairs = top_n_sigma(pairs, p.top_n_sigma)
        elif name == "top_k" and p.top_k > 0:
            pairs = pairs[: p.top_k]
        elif name == "typ_p" and p.typical_p < 1:
            pairs = typical(pairs, p.typical_p, p.min_keep)
        elif name == "top_p" and p.top_p < 1:
            pairs = head(pairs, list(range(len(pairs))), p.top_p, False, p.min_keep)
        elif name == "min_p" and p.min_p > 0:
            bound = pairs[0][1] + math.log(p.min_p)
            pairs = [pair for k, pair in enumerate(pairs) if pair[1] >= bound or k < p.min_keep]
        elif name == "xtc" and xtc_acts:
            pairs = xtc(pairs, p.xtc_threshold, p.min_keep)
        elif name == "temperature":
            temp = dynamic_temp(pairs, p.temp, p.dynatemp_range, p.dynatemp_exponent) if p.dynatemp_range else p.temp
            pairs = [(i, (x - pairs[0][1]) / temp) for i, x in pairs] if temp > 0 else pairs[:1]
    return dict(zip((i for i, _ in pairs), softmax(pairs), strict=True))


def adaptive_p(probs: dict[int, float], target: float, decay: float, drawn: Sequence[float]) -> dict[int, float]:
    """{id: probability} after adaptive-p, when tokens of the probabilities `drawn` were drawn before."""
    history = [*reversed(drawn)]
    total = sum(q * decay**k for k, q in enumerate(history)) + decay ** len(history) * target / (1 - decay)
    weight = sum(decay**k for k in range(len(history))) + decay ** len(history) / (1 - decay)
    aim = min(max(2 * target - total / weight, 0.0), 1.0)
    distance = {i: abs(q - aim) / 0.3 for i, q in probs.items()}
    pairs = ranked([(i, 5 - 10 * d * d / (1 + d)) for i, d in distance.items()])
    return dict(zip((i for i, _ in pairs), softmax(pairs), strict=True))


def mirostat_2(pairs: Pairs, mu: float) -> Pairs:
    """Those whose surprise in bits is at most mu; the best at least."""
    return [pair for pair, q in zip(pairs, softmax(pairs), strict=True) if q > 0 and -math.log2(q) <= mu] or pairs[:1]


def mirostat_1(pairs: Pairs, mu: float) -> Pairs:
    """The k best, by the formulas of the paper, from the 100 best."""
    s_top, s_bottom = 0.0, 0.0
    for k in range(min(100, len(pairs)) - 1):
        t, b = math.log((k + 2) / (k + 1)), pairs[k][1] - pairs[k + 1][1]
        s_top, s_bottom = s_top + t * b, s_bottom + t * t
    s = s_top / s_bottom
    k = ((s - 1) * 2**mu / (1 - len(pairs) ** (1 - s))) ** (1 / s)
    return pairs[: max(1, int(min(k, len(pairs))))]
