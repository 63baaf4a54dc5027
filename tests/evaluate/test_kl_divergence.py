"""The statistics against their definitions, and the run against the obvious way."""

import math
from pathlib import Path

import numpy as np
import pytest

from llmkit.evaluate.kl_divergence import KlStatistics, base_windows, kl_divergence
from llmkit.evaluate.logits_file import LogitsReader, LogitsWriter
from llmkit.evaluate.perplexity import perplexity
from llmkit.evaluate.windows import chunks
from tests.evaluate.contexts import log_softmax, small_context
from tests.evaluate.samples import base_file
from tests.make_models import make_model

N_VOCAB = 300
TOKENS = np.random.default_rng(2).integers(0, N_VOCAB, 400).astype(np.int32)


def sample(n: int = 500) -> np.ndarray:
    """[n, 4]: nll, that of the base, divergence, same top."""
    rng = np.random.default_rng(3)
    base = rng.gamma(2.0, 1.0, n)
    return np.stack(
        [np.abs(base + rng.normal(size=n) * 0.3), base, rng.gamma(0.5, 0.1, n), rng.random(n) < 0.9], axis=1
    )


def filled(tokens: np.ndarray, n_windows: int = 5) -> KlStatistics:
    statistics = KlStatistics()
    for part in np.array_split(tokens, n_windows):
        statistics.add(part)
    return statistics


def test_means_and_their_errors() -> None:
    t = sample()
    s, n = filled(t), len(t)
    p_diff = np.exp(-t[:, 0]) - np.exp(-t[:, 1])
    for value, column in ((s.ln_ppl, t[:, 0]), (s.ln_ppl_base, t[:, 1]), (s.kld, t[:, 2]), (s.p_diff, p_diff)):
        assert value.mean == pytest.approx(column.mean(), rel=1e-12)
        assert value.error == pytest.approx(column.std() / math.sqrt(n - 1), rel=1e-9)
    assert s.ppl.mean == pytest.approx(math.exp(t[:, 0].mean()))
    assert s.ppl.error == pytest.approx(s.ppl.mean * s.ln_ppl.error)
    assert s.same_top.mean == t[:, 3].mean()
    assert s.same_top.error == pytest.approx(t[:, 3].std() / math.sqrt(n - 1))
    assert s.p_diff_rms.mean == pytest.approx(math.sqrt((p_diff**2).mean()))
    assert s.p_diff_rms.error == pytest.approx(0.5 / s.p_diff_rms.mean * (p_diff**2).std() / math.sqrt(n - 1))


def test_differences_count_that_both_models_saw_the_same_tokens() -> None:
    t = sample()
    s, n = filled(t), len(t)
    assert s.correlation == pytest.approx(np.corrcoef(t[:, 0], t[:, 1])[0, 1])
    difference = t[:, 0] - t[:, 1]
    assert s.ln_ratio.mean == pytest.approx(difference.mean())
    assert s.ln_ratio.error == pytest.approx(difference.std() / math.sqrt(n - 1))
    assert s.ratio.mean == pytest.approx(s.ppl.mean / s.ppl_base.mean)
    assert s.difference.mean == pytest.approx(s.ppl.mean - s.ppl_base.mean)
    covariance = np.cov(s.ppl.mean * t[:, 0], s.ppl_base.mean * t[:, 1], ddof=0)[0, 1] / (n - 1)
    assert s.difference.error == pytest.approx(math.sqrt(s.ppl.error**2 + s.ppl_base.error**2 - 2 * covariance))


def test_percentiles_lie_between_neighbours() -> None:
    t = sample(11)
    t[:, 2] = np.arange(11)[::-1]
    assert filled(t).kld_percentiles([0.0, 0.25, 0.5, 1.0]) == [0.0, 2.5, 5.0, 10.0]
    p_diff = np.sort(np.exp(-t[:, 0]) - np.exp(-t[:, 1]))
    assert filled(t).p_diff_percentiles([0.0, 0.5, 1.0]) == pytest.approx([p_diff[0], p_diff[5], p_diff[10]], abs=1e-6)


def test_equal_models() -> None:
    t = sample()
    t[:, 0], t[:, 2], t[:, 3] = t[:, 1], 0, 1
    s = filled(t)
    assert (s.kld.mean, s.ln_ratio.mean, s.p_diff_rms.mean, s.p_diff_rms.error, s.same_top.mean) == (0, 0, 0, 0, 1)
    assert s.ln_ratio.error == pytest.approx(0, abs=1e-7)
    assert s.correlation == pytest.approx(1)


def test_no_tokens_and_few() -> None:
    assert KlStatistics().kld.mean == 0
    few = filled(sample(5), 1)
    assert (few.kld.error, few.correlation) == (0, 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("kl") / "m.gguf", n_vocab=N_VOCAB)


def test_the_run_is_the_definition(model: Path, tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(base_file(TOKENS, 40, N_VOCAB))
    with small_context(model) as ctx, LogitsReader(tmp_path / "base") as base:
        windows = base_windows(base, N_VOCAB, 1)
        s = list(kl_divergence(ctx, base, windows, 3))[-1]
        own = obvious_log_probs(ctx)
    raw = np.frombuffer((tmp_path / "base").read_bytes()[20 + 4 * 400 :], "<u2").reshape(190, N_VOCAB + 4)
    head = raw[:, :4].copy().view(np.float32).astype(np.float64)
    other = head[:, :1] * raw[:, 4:] + head[:, 1:]
    divergences = np.where(other > -16, np.exp(other) * (other - own), 0).sum(axis=1)
    targets = windows.targets(0, 190)
    assert s.n == 190
    assert s.kld.mean == pytest.approx(divergences.mean(), rel=1e-5)
    assert s.kld_percentiles([1.0])[0] == pytest.approx(divergences.max(), rel=1e-5)
    assert s.ln_ppl.mean == pytest.approx(-own[np.arange(190), targets].mean(), rel=1e-6)
    assert s.ln_ppl_base.mean == pytest.approx(-other[np.arange(190), targets].mean(), rel=1e-6)
    assert s.same_top.mean == (own.argmax(axis=1) == other.argmax(axis=1)).mean()


def obvious_log_probs(ctx) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Of the scored positions, chunk after chunk."""
    from llmkit.engine.batch import Segment

    parts = []
    for i in range(10):
        seq = ctx.new_sequence()
        tokens = [1, *TOKENS[40 * i + 1 : 40 * i + 39].tolist()]
        parts.append(log_softmax(np.array(ctx.decode([Segment(seq, tokens, "all")])))[20:])
        ctx.free_sequence(seq)
    return np.concatenate(parts)


def test_a_model_against_its_own_file(model: Path, tmp_path: Path) -> None:
    """Nothing but the 16 bits lies between them."""
    with small_context(model) as ctx:
        windows = chunks(TOKENS, 40, -1, None)
        with LogitsWriter(tmp_path / "f", windows, N_VOCAB) as save:
            ppl = list(perplexity(ctx, windows, 4, save=save))[-1].ppl
            save.finish()
        with LogitsReader(tmp_path / "f") as base:
            s = list(kl_divergence(ctx, base, base_windows(base, N_VOCAB, None), 2))[-1]
    assert abs(s.kld.mean) < 2e-6
    assert s.ppl.mean == pytest.approx(ppl, rel=1e-12)
    assert s.ppl_base.mean == pytest.approx(ppl, rel=1e-5)
    assert s.same_top.mean > 0.99
