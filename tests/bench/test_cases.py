"""The cases that lists of parameters make: llama-bench's order and names."""

from pathlib import Path
from typing import Any

import pytest

from llmkit.bench.cases import Case, Parameters
from llmkit.errors import UsageError

MODELS = [Path("a.gguf"), Path("b.gguf")]


def test_defaults_are_those_of_llama_bench() -> None:
    cases = list(Parameters(MODELS[:1], n_threads=[3]).cases())
    assert [case.name for case in cases] == ["pp512", "tg128"]
    assert {(c.n_batch, c.n_ubatch, c.type_k, c.type_v, c.n_threads) for c in cases} == {(2048, 512, "f16", "f16", 3)}
    assert Parameters(MODELS).reps == 5


def test_names() -> None:
    def name(n_prompt: int, n_gen: int, n_depth: int = 0) -> str:
        return Case(MODELS[0], n_prompt, n_gen, n_depth).name

    assert name(512, 0) == "pp512"
    assert name(0, 128) == "tg128"
    assert name(512, 128) == "pp512+tg128"
    assert name(0, 64, 4096) == "tg64 @ d4096"


def test_order() -> None:
    """Models outermost, then batches, threads, depths; within them prompts, generations, pairs."""
    parameters = Parameters(
        MODELS, n_prompt=[8, 4], n_gen=[2], n_pg=[(3, 1)], n_depth=[0, 16], n_threads=[1, 2], n_batch=[32, 16]
    )
    cases = list(parameters.cases())
    assert len(cases) == 2 * 2 * 2 * 2 * 4
    assert [case.name for case in cases[:5]] == ["pp8", "pp4", "tg2", "pp3+tg1", "pp8 @ d16"]
    keys = [(MODELS.index(c.model), -c.n_batch, c.n_threads, c.n_depth) for c in cases]
    assert keys == sorted(keys)


def test_zero_leaves_a_test_out() -> None:
    cases = Parameters(MODELS[:1], n_prompt=[0], n_gen=[0, 4], n_pg=[(0, 0), (2, 0)]).cases()
    assert [case.name for case in cases] == ["tg4", "pp2"]


def test_a_context_is_as_large_as_the_case() -> None:
    params = Case(MODELS[0], 100, 28, 64, 32, 16, "f32", "f16", 2).context_params()
    assert (params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads) == (192, 32, 16, 2)
    assert (params.type_k, params.type_v) == ("f32", "f16")


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("-r", {"reps": 0}),
        ("--delay", {"delay": -1}),
        ("-t", {"n_threads": [2, 0]}),
        ("-b", {"n_batch": [0]}),
        ("-ub", {"n_ubatch": [0]}),
    ],
)
def test_values_out_of_range(option: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{option} is"):
        Parameters(MODELS, **changes)
