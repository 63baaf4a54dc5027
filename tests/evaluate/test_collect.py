"""What is collected against the twin: the inputs of each matrix in float64, written down where the twin multiplies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmkit.evaluate.collect import run_windows
from llmkit.evaluate.perplexity import perplexity
from llmkit.evaluate.windows import Windows, chunks
from llmkit.models.input_squares import InputSquares
from tests.engine_runs import load, need_engine
from tests.make_models import make_model
from tests.reference.model import Twin

need_engine()

TOKENS = np.random.default_rng(1).integers(0, 128, 200).astype(np.int32)
WINDOWS = chunks(TOKENS, 50, 3, 9)
Sums = dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]]


class Recorder(Twin):
    """Sums up the squares of what `matmul` gets: by tensor, and by expert where it asks for a part of the rows."""

    sums: Sums

    def matmul(self, x: NDArray[Any], name: str, rows: slice = slice(None)) -> NDArray[Any]:
        shape = self.gguf.tensors[name].shape
        n_expert = shape[2] if len(shape) > 2 else 1
        sums, counts = self.sums.setdefault(name, (np.zeros((n_expert, shape[0])), np.zeros(n_expert, np.int64)))
        expert = rows.start // shape[1] if n_expert > 1 else 0
        sums[expert] += (x**2).sum(axis=0)
        counts[expert] += len(x)
        return super().matmul(x, name, rows)


def expected(path: Path, windows: Windows) -> Sums:
    twin = Recorder(path)
    twin.sums = {}
    for i in range(windows.n):
        ids = TOKENS[50 * i : 50 * i + 50].tolist()
        twin.forward([9, *ids[1:]])
    return {name: found for name, found in twin.sums.items() if name != "token_embd.weight"}


@contextmanager
def collecting(path: Path, process_output: bool = True, n_threads: int = 2, n_ubatch: int = 512) -> Iterator[Any]:
    from llmkit.engine.context import Context
    from llmkit.params import ContextParams

    collector = InputSquares(process_output)
    params = ContextParams(256, 2048, n_ubatch, n_threads, "f32", "f32")
    with Context(load(path), params, collector) as ctx:
        yield ctx, collector


# A dense model with tied outputs, matrices that hold several, experts chosen in two ways, a shared one.
@pytest.mark.parametrize("arch", ["gemma3", "phi3", "gpt2", "qwen3moe", "gpt-oss", "llama"])
def test_it_is_what_the_matrices_are_multiplied_with(arch: str, tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", arch=arch, moe=arch == "llama", tied=arch == "gemma3")
    with collecting(path) as (ctx, collector):
        assert sum(len(group) for group in run_windows(ctx, WINDOWS, 2, score=True, all_outputs=True)) == 3
    want = expected(path, WINDOWS)
    assert set(collector.squares) == set(want)
    for name, (sums, counts) in want.items():
        found = collector.squares[name]
        assert found.counts.tolist() == counts.tolist(), name
        np.testing.assert_allclose(found.sums, sums, rtol=2e-4, err_msg=name)


def test_how_it_is_computed_does_not_matter(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf", arch="qwen3moe", type="Q4_0")
    results = set()
    for n_threads, n_ubatch in ((1, 512), (2, 512), (3, 7), (2, 50)):
        with collecting(path, n_threads=n_threads, n_ubatch=n_ubatch) as (ctx, collector):
            list(run_windows(ctx, WINDOWS, 1, score=True, all_outputs=True))
        results.add(b"".join(s.sums.tobytes() + s.counts.tobytes() for s in collector.squares.values()))
    assert len(results) == 1


def test_output_is_collected_only_on_demand(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf")
    with collecting(path, process_output=False) as (ctx, collector):
        list(run_windows(ctx, WINDOWS, 1, score=False, all_outputs=False))
    assert not collector.has_output
    assert {squares.counts.tolist()[0] for squares in collector.squares.values()} == {150}


def test_scores_are_those_of_perplexity(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m.gguf")
    with collecting(path) as (ctx, _):
        nll = np.concatenate(
            [part for group in run_windows(ctx, WINDOWS, 2, score=True, all_outputs=False) for part in group]
        )
        estimate = list(perplexity(ctx, WINDOWS, 2))[-1]
    assert nll.size == estimate.n == 3 * 24
    assert nll.sum() == pytest.approx(estimate.nll_sum, rel=1e-12)


def test_an_interruption_ends_it(tmp_path: Path) -> None:
    path, calls = make_model(tmp_path / "m.gguf"), iter([False, False, True])
    with collecting(path) as (ctx, _):
        groups = list(run_windows(ctx, WINDOWS, 1, score=False, all_outputs=False, stop=lambda: next(calls, True)))
        assert not ctx.kv.sequences
    assert len(groups) == 1
