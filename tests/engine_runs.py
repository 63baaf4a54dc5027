"""Driving the fast engine in the ways that the equivalence tests compare.

Owns how a prompt is cut into calls of `decode`, how several sequences are mixed, and what "equal bits" means. Knows
only the engine's public interface, and two hooks of its block pool: `shuffle` (blocks are handed out in a random
order) and `poison` (a freed block is filled with NaN).
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Logits = NDArray[np.float32]


def need_engine() -> None:
    """Skips the calling module while the engine's context is not there."""
    pytest.importorskip("llmkit.engine.context", exc_type=ImportError)


@lru_cache(maxsize=1)
def load(path: Path) -> Any:
    """The model of a file; the last one stays open, since many runs of one model follow each other."""
    from llmkit.models.model import load_model

    return load_model(path)


@contextmanager
def context(
    path: Path,
    n_threads: int = 2,
    kv: str = "f32",
    n_ctx: int = 2048,
    n_ubatch: int = 512,
    seed: int | None = None,
    swa_full: bool = False,
) -> Iterator[Any]:
    """A context on the model; with a seed its blocks lie at random places, and it has freed ones, which are NaN.

    kv: the type of K and V, or of both, apart: "q8_0/f16"."""
    from llmkit.engine.context import Context
    from llmkit.params import ContextParams

    type_k, type_v = (kv.split("/") * 2)[:2]
    params = ContextParams(n_ctx, 2048, n_ubatch, n_threads, type_k, type_v, swa_full=swa_full)
    with Context(load(path), params) as ctx:
        if seed is not None:
            for pool in ctx.kv.pools:
                pool.shuffle(seed)
                pool.poison(True)
            use_and_free(ctx, seed)
        yield ctx


def use_and_free(ctx: Any, seed: int, n_sequences: int = 3, n_tokens: int = 70) -> None:
    """Leaves blocks behind that other sequences have written and freed: NaN, with poison on."""
    ids = random_ids(n_sequences * n_tokens, 100, seed)
    sequences = [ctx.new_sequence() for _ in range(n_sequences)]
    for i, seq in enumerate(sequences):
        feed(ctx, [(seq, ids[i * n_tokens : (i + 1) * n_tokens])], "none")
    for seq in sequences:
        ctx.free_sequence(seq)


def random_ids(n: int, n_vocab: int, seed: int) -> list[int]:
    """Token ids below n_vocab."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, n_vocab, n)]


def feed(ctx: Any, parts: Sequence[tuple[Any, list[int]]], logits: str = "all") -> Logits:
    """One call of decode; its rows are copied, since the next call reuses them."""
    from llmkit.engine.batch import Segment

    rows = ctx.decode([Segment(seq, tokens, logits) for seq, tokens in parts])  # type: ignore[arg-type]
    return np.array(rows, np.float32)


def prefill(ctx: Any, ids: list[int], chunk: int) -> Logits:
    """Logits of every position [n, n_vocab], the prompt fed in chunks to a sequence of its own."""
    seq = ctx.new_sequence()
    rows = [feed(ctx, [(seq, ids[start : start + chunk])]) for start in range(0, len(ids), chunk)]
    ctx.free_sequence(seq)
    return np.concatenate(rows)


def interleave(ctx: Any, prompts: Sequence[list[int]], seed: int, longest: int = 40) -> list[Logits]:
    """Logits of every position of every prompt, all of them live at once.

    Every call takes some of the sequences in a random order, with runs of 1 to `longest` tokens; half of the runs are
    single tokens, as when some clients generate while others bring a prompt."""
    rng = np.random.default_rng(seed)
    sequences, done = [ctx.new_sequence() for _ in prompts], [0] * len(prompts)
    rows: list[list[Logits]] = [[] for _ in prompts]
    while left := [i for i, ids in enumerate(prompts) if done[i] < len(ids)]:
        chosen = [int(i) for i in rng.permutation(left)[: rng.integers(1, len(left) + 1)]]
        counts = [1 if rng.random() < 0.5 else int(rng.integers(1, longest + 1)) for _ in chosen]
        parts = [prompts[i][done[i] : done[i] + n] for i, n in zip(chosen, counts, strict=True)]
        out = feed(ctx, [(sequences[i], part) for i, part in zip(chosen, parts, strict=True)])
        start = 0
        for i, part in zip(chosen, parts, strict=True):
            rows[i].append(out[start : start + len(part)])
            start += len(part)
            done[i] += len(part)
    for seq in sequences:
        ctx.free_sequence(seq)
    return [np.concatenate(r) for r in rows]


def assert_same_bits(got: Logits, want: Logits, what: str) -> None:
    """Fails unless both are finite and equal as uint32; says where and by how much they first differ."""
    assert got.shape == want.shape, f"{what}: {got.shape} instead of {want.shape}"
    assert np.isfinite(got).all(), f"{what}: not finite from position {int(np.argmin(np.isfinite(got).all(axis=1)))}"
    differ = (got.view(np.uint32) != want.view(np.uint32)).any(axis=1)
    if differ.any():
        first = int(np.argmax(differ))
        worst = float(np.abs(got - want).max())
        pytest.fail(f"{what}: {int(differ.sum())} of {len(got)} positions differ, first {first}, by up to {worst:.3g}")


def digest(logits: Logits) -> str:
    """A name for the exact bits."""
    return hashlib.sha256(np.ascontiguousarray(logits, "<f4").tobytes()).hexdigest()
