"""Rows that quantizers find hard, importance to go with them, and the bytes that libgguf makes of both.

libgguf (PyPI) holds llama.cpp's reference quantizers; it has not Q2_0.
"""

from collections.abc import Iterator

import libgguf
import numpy as np
from numpy.typing import NDArray

from llmkit.quants.quantize.registry import quantizer
from tests.kernels.harness import Floats


def rows_of(n_cols: int, seed: int = 0) -> Iterator[tuple[str, Floats]]:
    """(name, rows float32 [n_rows, n_cols]), n_cols a multiple of 16."""
    rng = np.random.default_rng(seed)
    random = rng.standard_normal((4, n_cols)).astype(np.float32)
    yield "normal", random
    yield "uniform", rng.uniform(0.5, 1.5, (3, n_cols)).astype(np.float32)
    yield "heavy tails", (rng.standard_t(2, (4, n_cols)) * 0.02).astype(np.float32)
    yield "constant", np.repeat(np.array([[1.0], [-1.0], [0.3], [-0.7], [1e-3]], np.float32), n_cols, axis=1)
    yield "zero", np.zeros((2, n_cols), np.float32)
    yield "negative zero", np.full((1, n_cols), -0.0, np.float32)
    yield "some zero blocks", random * (np.arange(n_cols) // 32 % 2)
    yield "some zeros", random * (rng.random((4, n_cols)) < 0.3)
    yield "subnormal", random * np.float32(1e-39)
    yield "tiny", random * np.array([[1e-36], [1e-30], [1e-20], [1e-12]], np.float32)
    yield "huge", random * np.array([[1e30], [1e20], [1e10], [3e5]], np.float32)
    yield "overflows half", random * np.float32(60000.0)
    yield "signs", np.sign(random)
    yield "ties", rng.integers(-8, 9, (4, n_cols)).astype(np.float32) / 2
    yield "integers", rng.integers(-127, 128, (4, n_cols)).astype(np.float32)
    halves = rng.integers(-127, 126, (4, n_cols)).astype(np.float32) + np.float32(0.5)
    halves[:, ::16] = 127
    yield "halves", halves
    yield "ternary", rng.integers(-1, 2, (4, n_cols)).astype(np.float32) * np.float32(0.037)
    yield "positive", np.abs(random)
    yield "negative", -np.abs(random)
    yield "ramp", np.tile(np.linspace(-1, 1, n_cols, dtype=np.float32), (2, 1))
    outlier = random * np.float32(0.01)
    outlier[:, rng.integers(0, n_cols, 4)] = np.array([[100.0], [-100.0], [1.0], [1e6]], np.float32)
    yield "one outlier", outlier


def importance_of(n_cols: int, seed: int = 0) -> Iterator[tuple[str, Floats | None]]:
    """(name, float32 [n_cols] or None)."""
    rng = np.random.default_rng(seed + 1)
    yield "none", None
    random = rng.exponential(1.0, n_cols).astype(np.float32)
    yield "random", random
    yield "wide", (random**6).astype(np.float32)
    yield "some zeros", random * (rng.random(n_cols) < 0.5).astype(np.float32)
    yield "few", random * (rng.random(n_cols) < 0.05).astype(np.float32)
    yield "all zeros", np.zeros(n_cols, np.float32)


def ours(type_id: int, rows: Floats, importance: Floats | None) -> NDArray[np.uint8]:
    convert = quantizer(type_id)
    rows = np.ascontiguousarray(rows, np.float32)
    out = np.full((len(rows), convert.row_bytes(rows.shape[1])), 0xA5, np.uint8)
    convert(rows, importance, out)
    return out


def theirs(type_id: int, rows: Floats, importance: Floats | None) -> NDArray[np.uint8]:
    rows = np.ascontiguousarray(rows, np.float32)
    raw = libgguf.quantize_rows_raw(type_id, rows, *rows.shape, importance)
    return np.frombuffer(raw, np.uint8).reshape(len(rows), -1)
