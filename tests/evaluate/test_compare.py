"""Models in lockstep against each alone, and weights against a twin."""

import math
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from llmkit.engine.context import Context
from llmkit.evaluate.compare import ModelScore, check_same_tokens, compare
from llmkit.evaluate.errors import VocabularyError
from llmkit.evaluate.perplexity import perplexity
from llmkit.evaluate.speed import decode_speed
from llmkit.evaluate.tensor_errors import tensor_differences
from llmkit.evaluate.windows import chunks
from llmkit.files.gguf_reader import open_gguf
from llmkit.models.model import load_model
from llmkit.params import ContextParams
from tests.make_models import make_model
from tests.reference import dequantize_rows

TOKENS = np.random.default_rng(4).integers(0, 400, 260).astype(np.int32)
WINDOWS = chunks(TOKENS, 40, -1, None)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One in float32, the same in Q8_0, another one."""
    folder = tmp_path_factory.mktemp("compare")
    make_model(folder / "a.gguf", n_vocab=400)
    make_model(folder / "b.gguf", n_vocab=400, type="Q8_0")
    make_model(folder / "c.gguf", n_vocab=400, seed=1)
    return [folder / f"{name}.gguf" for name in "abc"]


def contexts(stack: ExitStack, paths: list[Path]) -> list[Context]:
    params = ContextParams(n_ctx=512, n_threads=2, type_k="f32", type_v="f32")
    return [stack.enter_context(Context(load_model(path), params)) for path in paths]


def test_each_model_scores_as_it_does_alone(models: list[Path]) -> None:
    with ExitStack() as stack:
        opened = contexts(stack, models)
        scores = [ModelScore() for _ in opened]
        assert list(compare(opened, WINDOWS, 2, scores)) == [1, 2, 3, 4, 5, 6]
        for ctx, score in zip(opened, scores, strict=True):
            assert score.statistics.ppl.mean == pytest.approx(list(perplexity(ctx, WINDOWS, 2))[-1].ppl, rel=1e-12)
            assert score.n_tokens == 6 * 39
            assert score.tokens_per_second > 0
        base, same, other = (score.statistics for score in scores)
        assert base.kld.mean == base.kld_percentiles([1.0])[0] == 0.0
        assert base.same_top.mean == 1
        assert 0 < same.kld.mean < other.kld.mean
        assert not any(ctx.kv.sequences for ctx in opened)


def test_equal_models_diverge_by_exactly_nothing(models: list[Path]) -> None:
    with ExitStack() as stack:
        opened = contexts(stack, [models[1], models[1]])
        scores = [ModelScore() for _ in opened]
        list(compare(opened, WINDOWS, 3, scores))
        s = scores[1].statistics
        assert (s.kld.mean, s.kld.error, s.ln_ratio.mean, s.p_diff_rms.mean, s.same_top.mean) == (0, 0, 0, 0, 1)


def test_stop(models: list[Path]) -> None:
    with ExitStack() as stack:
        opened = contexts(stack, models[:2])
        scores, done = [ModelScore() for _ in opened], list[int]()
        for n in compare(opened, WINDOWS, 1, scores, lambda: len(done) == 2):
            done.append(n)
        assert done == [1, 2]
        assert scores[0].statistics.n == scores[1].statistics.n == 2 * 19
        assert not any(ctx.kv.sequences for ctx in opened)


def test_models_of_different_vocabularies() -> None:
    same, other = np.array([1, 2], np.int32), np.array([1, 3], np.int32)
    check_same_tokens(["a", "b"], [same, same.copy()], [9, 9])
    with pytest.raises(VocabularyError, match="a has 9 tokens and b has 8"):
        check_same_tokens(["a", "b"], [same, same], [9, 8])
    with pytest.raises(VocabularyError, match="a and b cut the text"):
        check_same_tokens(["a", "b"], [same, other], [9, 9])


def test_the_speed_of_decoding(models: list[Path]) -> None:
    with ExitStack() as stack:
        (ctx,) = contexts(stack, models[:1])
        assert decode_speed(ctx, TOKENS.tolist()) > 0
        assert not ctx.kv.sequences


@pytest.mark.parametrize("kind", ["F16", "Q4_1", "Q8_0"])
def test_relative_errors_of_tensors(models: list[Path], tmp_path: Path, kind: str) -> None:
    make_model(tmp_path / "q.gguf", n_vocab=400, type=kind, types={"attn_q": "F32"}, seed=3)
    with open_gguf(models[0]) as base, open_gguf(tmp_path / "q.gguf") as other:
        found = {d.name: d for d in tensor_differences(base, other, 2)}
        assert set(found) == set(base.tensors)
        for name, info in base.tensors.items():
            b = other.tensors[name]
            want, got = (
                dequantize_rows(file.tensor_bytes(name).reshape(i.n_rows, -1), i.type).astype(np.float64)
                for file, i in ((base, info), (other, b))
            )
            error = math.sqrt(((got - want) ** 2).sum() / (want**2).sum())
            assert found[name].error == pytest.approx(error, rel=1e-4), name
            assert (found[name].base_type, found[name].type) == (info.type_name, b.type_name)


def test_equal_tensors_and_those_of_another_shape(models: list[Path], tmp_path: Path) -> None:
    make_model(tmp_path / "wide.gguf", n_vocab=400, n_ff=256)
    with open_gguf(models[0]) as base, open_gguf(tmp_path / "wide.gguf") as other:
        names = {d.name for d in tensor_differences(base, other, 1)}
        assert {"blk.0.attn_q.weight"} <= names
        assert "blk.0.ffn_up.weight" not in names
        assert all(d.error == 0 for d in tensor_differences(base, base, 1))
