"""Packing into passes, and logits that do not depend on it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.evaluate import rows
from llmkit.evaluate.rows import Part, by_window, passes, window_logits
from llmkit.evaluate.windows import chunks
from tests.evaluate.contexts import next_log_probs, small_context
from tests.make_models import make_model


@pytest.mark.parametrize(("n_tokens", "n_rows"), [(512, 512), (7, 512), (512, 3), (10, 4), (1, 1)])
def test_passes_hold_every_token_once_and_stay_in_their_bounds(n_tokens: int, n_rows: int) -> None:
    parts = [Part("a", list(range(13)), False), Part("b", list(range(100, 111)), True), Part("c", [1], True)]
    found: dict[Any, list[int]] = {}
    for segments in passes(parts, n_tokens, n_rows):
        assert segments
        assert sum(len(segment.tokens) for segment in segments) <= n_tokens
        assert sum(len(segment.tokens) for segment in segments if segment.logits == "all") <= n_rows
        assert len({segment.seq for segment in segments}) == len(segments)
        for segment in segments:
            assert segment.logits == ("none" if segment.seq == "a" else "all")
            found.setdefault(segment.seq, []).extend(segment.tokens)
    assert found == {part.seq: part.tokens for part in parts}


def test_by_window_collects_whole_windows() -> None:
    values = np.arange(24.0).reshape(12, 2)
    for cuts in ([12], [5, 5, 2], [1] * 12, [3, 9]):
        parts = zip(cuts, np.split(values, np.cumsum(cuts)[:-1]), strict=True)
        found = list(by_window(((0, part) for _, part in parts), 4))
        assert [i for i, _ in found] == [0, 1, 2]
        np.testing.assert_array_equal(np.concatenate([part for _, part in found]), values)


def test_what_is_left_of_a_window_is_dropped() -> None:
    assert [i for i, _ in by_window(iter([(0, np.zeros((7, 1)))]), 4)] == [0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("rows") / "m.gguf", n_vocab=500)


@pytest.mark.parametrize(("n_seq", "n_ubatch"), [(1, 512), (4, 512), (3, 7), (2, 64)])
def test_window_logits_are_those_of_each_window_alone(
    model: Path, n_seq: int, n_ubatch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows a pass, so that passes end inside windows."""
    monkeypatch.setattr(rows, "LOGITS_BYTES", 4 * 500 * 17)
    tokens = np.random.default_rng(0).integers(0, 500, 210).astype(np.int32)
    windows = chunks(tokens, 40, -1, 3)
    with small_context(model, n_ubatch) as ctx:
        found, row = [], 0
        for first, logits in window_logits(ctx, windows, n_seq):
            assert first == row
            assert len(logits) <= 17
            found.append(np.array(logits))
            row += len(logits)
        assert row == windows.n * windows.n_scored
        assert not ctx.kv.sequences
        joined = np.concatenate(found).astype(np.float64)
        joined -= joined.max(axis=1, keepdims=True)
        joined -= np.log(np.exp(joined).sum(axis=1, keepdims=True))
        got = joined[np.arange(row), windows.targets(0, row)]
        for i in range(windows.n):
            alone = next_log_probs(ctx, [3, *tokens[40 * i + 1 : 40 * i + 40].tolist()])[20:]
            np.testing.assert_array_equal(got[19 * i : 19 * i + 19], alone)


def test_stop_ends_it_and_frees_the_sequences(model: Path) -> None:
    windows = chunks(np.zeros(400, np.int32), 40, -1, None)
    asked = []
    with small_context(model, 64) as ctx:
        for _ in window_logits(ctx, windows, 2, lambda: len(asked) > 0):
            asked.append(1)
        assert len(asked) == 1
        assert not ctx.kv.sequences
