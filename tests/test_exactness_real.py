"""Equal bits on the real models: a prompt of 600 tokens, every position, in chunks, threads and company of many kinds.

Rows of a large vocabulary are kept as digests, a position each.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import engine_runs as runs
from tests.paths import DATA, need_shared
from tests.reference.golden import read_greedy
from tests.test_greedy import MODELS

pytestmark = need_shared
runs.need_engine()

N_TOKENS = 600


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, real_model: Callable[[str], Path]) -> tuple[Path, list[int]]:
    """The model's file and 600 tokens of real text: the stored prompts and answers, one after another."""
    texts = read_greedy(DATA / "greedy" / "llamacpp.json")[MODELS[request.param]]
    ids = [token for text in texts for token in text.prompt_ids + text.output_ids]
    return real_model(request.param), (ids + ids)[:N_TOKENS]


def digests(ctx: Any, ids: list[int], chunk: int) -> list[str]:
    """One digest per position."""
    seq, out = ctx.new_sequence(), []
    for start in range(0, len(ids), chunk):
        rows = runs.feed(ctx, [(seq, ids[start : start + chunk])])
        assert np.isfinite(rows).all()
        out += [runs.digest(row) for row in rows]
    ctx.free_sequence(seq)
    return out


@pytest.fixture(scope="module")
def yardstick(model: tuple[Path, list[int]]) -> list[str]:
    with runs.context(model[0], n_threads=1, kv="f16", n_ctx=1024) as ctx:
        return digests(ctx, model[1], 512)


def first_difference(got: list[str], want: list[str]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), None)


@pytest.mark.parametrize(
    ("chunk", "n_threads", "n_tokens"),
    [(512, 2, 600), (512, 3, 600), (64, 3, 600), (7, 1, 150), (7, 2, 290), (1, 2, 80)],
)
def test_chunks_and_threads(
    model: tuple[Path, list[int]], yardstick: list[str], chunk: int, n_threads: int, n_tokens: int
) -> None:
    """Small chunks stop earlier, but beyond a span of attention (256 tokens) at least once."""
    path, ids = model
    with runs.context(path, n_threads=n_threads, kv="f16", n_ctx=1024, seed=chunk) as ctx:
        assert first_difference(digests(ctx, ids[:n_tokens], chunk), yardstick[:n_tokens]) is None


def test_single_tokens_after_a_long_prompt(model: tuple[Path, list[int]], yardstick: list[str]) -> None:
    """What every generated token does: a long past, whose spans the threads share."""
    path, ids = model
    for n_threads in (1, 2, 3):
        with runs.context(path, n_threads=n_threads, kv="f16", n_ctx=1024, seed=n_threads) as ctx:
            seq = ctx.new_sequence()
            runs.feed(ctx, [(seq, ids[:580])], "none")
            got = [runs.digest(runs.feed(ctx, [(seq, [token])])[0]) for token in ids[580:]]
            assert first_difference(got, yardstick[580:]) is None


def test_beside_other_sequences(model: tuple[Path, list[int]], yardstick: list[str]) -> None:
    path, ids = model
    prompts = [ids[:100], ids[200:263], ids[:61], ids[90:150]]
    with runs.context(path, n_threads=2, kv="f16", n_ctx=2048, seed=5) as ctx:
        got = runs.interleave(ctx, prompts, seed=5)
        for i in (0, 2):
            assert first_difference([runs.digest(row) for row in got[i]], yardstick[: len(prompts[i])]) is None
        alone = digests(ctx, prompts[1], 512)
    assert first_difference([runs.digest(row) for row in got[1]], alone) is None


def test_a_float_cache(model: tuple[Path, list[int]]) -> None:
    path, ids = model
    with runs.context(path, n_threads=1, kv="f32", n_ctx=512) as ctx:
        want = digests(ctx, ids[:100], 512)
    with runs.context(path, n_threads=2, kv="f32", n_ctx=512, seed=2) as ctx:
        assert first_difference(digests(ctx, ids[:100], 7), want) is None
