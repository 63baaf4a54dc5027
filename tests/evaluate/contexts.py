"""Contexts on small models for the tests of evaluations, and the obvious way to get what they compute.

Owns nothing of how a measure is made.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.batch import Segment
from tests.engine_runs import context

Doubles = NDArray[np.float64]


@contextmanager
def small_context(path: Path, n_ubatch: int = 512, n_threads: int = 2, n_ctx: int = 2048) -> Iterator[Any]:
    """Keys and values in float32."""
    with context(path, n_threads, "f32", n_ctx, n_ubatch) as ctx:
        yield ctx


def log_softmax(logits: NDArray[np.float32]) -> Doubles:
    """Float64, the obvious way."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


def next_log_probs(ctx: Any, tokens: list[int]) -> Doubles:
    """log p of each token but the first, given those before it: one sequence, one call; float64 [n - 1]."""
    seq = ctx.new_sequence()
    log_probs = log_softmax(np.array(ctx.decode([Segment(seq, tokens[:-1], "all")])))
    ctx.free_sequence(seq)
    return np.asarray(log_probs[np.arange(len(tokens) - 1), tokens[1:]])
