"""The operations between the matrix products, one obvious NumPy function each.

Owns formulas; knows no model, no file and no cache. Every function keeps the dtype of its first argument (float32 or
float64) and takes token-major arrays: rows are tokens. Formulas are ggml's, in the order in which ggml applies them.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def nmse(got: Array, want: Array) -> float:
    """Sum of squared errors over the sum of squares of `want`, in float64: llama.cpp's measure between its backends."""
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    return float(((got64 - want64) ** 2).sum() / (want64**2).sum())


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    mean = (x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + eps).astype(x.dtype) * weight.astype(x.dtype))


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis; what is None is left out."""
    x64 = x.astype(np.float64)
    centred = x64 - x64.mean(axis=-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return np.asarray(y if bias is None else y + bias, x.dtype)


def rope_tables(
    pos: NDArray[np.integer],
    n_rot: int,
    freq_base: float,
    freq_scale: float = 1.0,
    freq_factors: Array | None = None,
    yarn: tuple[float, float] | None = None,
    mscale: float = 1.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cosines and sines [n, n_rot/2] of pos * freq_scale * freq_base^(-2i/n_rot) / freq_factors[i], times mscale.

    YaRN (arXiv:2309.00071): pairs before the first corner are not scaled, those after the second are, in between a mix.
    """
    pair = np.arange(n_rot // 2)
    inv = freq_base ** (-2.0 * pair / n_rot)
    if freq_factors is not None:
        inv = inv / freq_factors.astype(np.float64)
    scale = np.full(n_rot // 2, freq_scale)
    if yarn is not None:
        ramp = np.clip((pair - yarn[0]) / max(0.001, yarn[1] - yarn[0]), 0, 1)
        scale = freq_scale * ramp + (1 - ramp)
    theta = np.asarray(pos, np.float64)[:, None] * (scale * inv)[None, :]
    return np.cos(theta) * mscale, np.sin(theta) * mscale


def alibi_slopes(n_head: int, max_bias: float) -> NDArray[np.float64]:
    """By head, what a score loses for each token of distance (Press et al. 2021, arXiv:2108.12409)."""
    n = 2 ** int(np.floor(np.log2(n_head)))
    m0, m1 = 2.0 ** (-max_bias / n), 2.0 ** (-max_bias / 2 / n)
    return np.array([m0 ** (h + 1) if h < n else m1 ** (2 * (h - n) + 1) for h in range(n_head)])


def rope(x: Array, cos: Array, sin: Array, neox: bool) -> Array:
    """Rotates the pairs of x [n, n_head, head_dim]: (2i, 2i+1) for "norm", (i, i + n_rot/2) for "neox".

    What lies beyond n_rot is left alone."""
    half = cos.shape[-1]
    first = slice(0, half) if neox else slice(0, 2 * half, 2)
    second = slice(half, 2 * half) if neox else slice(1, 2 * half, 2)
    c, s = cos.astype(x.dtype)[:, None, :], sin.astype(x.dtype)[:, None, :]
    out = x.copy()
    out[..., first] = x[..., first] * c - x[..., second] * s
    out[..., second] = x[..., first] * s + x[..., second] * c
    return out


def softmax(x: Array, sink: float | None = None) -> Array:
    """Over the last axis, by subtracting the maximum; a row of nothing but -inf gives zeros, not NaN.

    A sink is one more score, whose share nothing receives."""
    top = x.max(axis=-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, x.dtype.type(sink))
    weights = np.exp(x - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(x.dtype.type(sink) - top)
    return np.asarray(weights / np.where(total == 0, 1, total), dtype=x.dtype)


def visible(q_pos: NDArray[np.integer], k_pos: NDArray[np.integer], window: int = 0) -> NDArray[np.bool_]:
    """[n_q, n_k]: causal, and with window > 0 only the last `window` keys, the query's own included."""
    distance = q_pos[:, None] - k_pos[None, :]
    return (distance >= 0) & ((distance < window) if window > 0 else True)


def attention(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    q_pos: NDArray[np.integer],
    k_pos: NDArray[np.integer],
    window: int = 0,
    cap: float = 0.0,
    slopes: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """softmax(q k^T scale) v. q [n_q, n_head, head_dim]; k, v [n_k, n_head_kv, head_dim] -> [n_q, n_head, head_dim].

    Query head h reads key head h // (n_head / n_head_kv). A cap bounds the scores before slopes [n_head] take distance
    into account; sinks [n_head] take part in the softmax."""
    group = q.shape[1] // k.shape[1]
    mask = visible(q_pos, k_pos, window)
    distance = (q_pos[:, None] - k_pos[None, :]).astype(q.dtype)
    out = np.empty((q.shape[0], q.shape[1], v.shape[2]), q.dtype)
    for h in range(q.shape[1]):
        scores = soft_cap((q[:, h] @ k[:, h // group].T) * q.dtype.type(scale), cap)
        if slopes is not None:
            scores = scores - q.dtype.type(slopes[h]) * distance
        masked = np.where(mask, scores, q.dtype.type(-np.inf))
        out[:, h] = softmax(masked, None if sinks is None else float(sinks[h])) @ v[:, h // group]
    return out


def attention_tiled(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    q_pos: NDArray[np.integer],
    k_pos: NDArray[np.integer],
    window: int = 0,
    tile: int = 32,
) -> Array:
    """`attention` by online softmax over tiles of keys, one query and head at a time: a fast kernel spelled out."""
    out = np.zeros((q.shape[0], q.shape[1], v.shape[2]), q.dtype)
    mask, group = visible(q_pos, k_pos, window), q.shape[1] // k.shape[1]
    for i, h in np.ndindex(q.shape[0], q.shape[1]):
        top, total, acc = -np.inf, 0.0, np.zeros(v.shape[2], q.dtype)
        for t0 in range(0, k.shape[0], tile):
            see = np.flatnonzero(mask[i, t0 : t0 + tile]) + t0
            if see.size == 0:
                continue
            scores = (k[see, h // group] @ q[i, h]) * scale
            new_top = max(top, float(scores.max()))
            weights, shrink = np.exp(scores - new_top), np.exp(top - new_top)
            total = total * shrink + weights.sum()
            acc = acc * shrink + weights @ v[see, h // group]
            top = new_top
        out[i, h] = acc / total if total > 0 else 0
    return out


def silu(x: Array) -> Array:
    """x * sigmoid(x), without overflow."""
    e = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def gelu(x: Array) -> Array:
    """The tanh form that ggml calls GELU."""
    inner = x.dtype.type(0.79788456080286535587989211986876) * x * (1 + x.dtype.type(0.044715) * x * x)
    return np.asarray(x.dtype.type(0.5) * x * (1 + np.tanh(inner)))


def swiglu(gate: Array, up: Array) -> Array:
    """silu(gate) * up."""
    return silu(gate) * up


def geglu(gate: Array, up: Array) -> Array:
    """gelu(gate) * up."""
    return gelu(gate) * up


def swiglu_oai(gate: Array, up: Array) -> Array:
    """gpt-oss's: gate sigmoid(1.702 gate) (up + 1), gate at most 7, up within -7 .. 7."""
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return np.asarray(silu(1.702 * gate) / 1.702 * (up + 1), gate.dtype)


def relu2(x: Array) -> Array:
    """max(x, 0)^2 (So et al. 2021, arXiv:2109.08668)."""
    return np.asarray(np.maximum(x, 0) ** 2)


def soft_cap(x: Array, cap: float) -> Array:
    """cap * tanh(x / cap); cap == 0 leaves x alone."""
    return x if cap == 0 else np.asarray(x.dtype.type(cap) * np.tanh(x / x.dtype.type(cap)))
