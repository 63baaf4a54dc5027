"""`scripts/soak` in small: it finds a right engine right, and a wrong answer wrong."""

import json
from pathlib import Path

import pytest

from llmkit.engine.context import Context
from llmkit.models.model import load_model
from llmkit.params import ContextParams
from scripts.bench import soak
from scripts.bench.soak_loads import Asked, Sessions, unbounded_hits
from tests.make_models import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("soak") / "m.gguf", n_ctx_train=4096)


def test_a_small_soak_keeps_its_bounds(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"sessions": 12, "turns": 2, "system": 64, "requests": 60, "slots": 3, "cells": 2048}
    assert soak.main([str(model), "--json", *(f"--{name}={value}" for name, value in options.items())]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["sessions"]["n_answers"], out["sessions"]["n_checked"]) == (24, 24)
    assert (out["random"]["n_requests"], out["lost"]) == (60, 0)
    assert all(out["bounds"].values())


def test_what_is_wrong_is_counted(model: Path) -> None:
    with Context(load_model(model), ContextParams(64)) as ctx:
        reference = soak.Reference(ctx)
        asked = Asked([5, 6, 7], 3, [(0, 0.0)] * 3, "finished")
        assert reference.count_wrong([asked]) == 1, "other tokens"
        asked.tokens = reference.tokens(asked)
        assert reference.count_wrong([asked]) == 0
        assert reference.count_wrong([Asked([5, 6, 7], 3, asked.tokens[:2], "cancelled")]) == 0
        assert reference.count_wrong([Asked([5, 6, 7], 3, asked.tokens[:2], "finished")]) == 1, "too few"
        assert reference.count_wrong([Asked([5, 6, 7], 3, asked.tokens, "failed: 500")]) == 1


def test_what_a_cache_without_bounds_finds() -> None:
    load = Sessions(2, 2, n_system=4, n_user=(2, 2))
    first, second = Asked([1, 2, 3, 4, 5, 6], 2), Asked([1, 2, 3, 4, 7, 8], 2)
    first.tokens = second.tokens = [(9, 0.0), (10, 0.0)]
    again = Asked([1, 2, 3, 4, 5, 6, 9, 10, 11, 12], 2)
    assert unbounded_hits([first, second, again], load) == 0 + 4 + 7
