"""States of the three real models: restored as never stopped, full logits and greedy text."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import engine_runs as runs

runs.need_engine()

from llmkit.engine.context import Context  # noqa: E402
from llmkit.engine.state.save_load import load_state, save_state  # noqa: E402
from llmkit.params import ContextParams  # noqa: E402

# Tokens of the prompt; gemma's is longer than its window of 512, so that it has slid when the state is saved.
CASES = [("smollm2", 70, "f16"), ("gemma-3", 560, "q8_0"), ("gemma-3", 60, "f16"), ("qwen2.5-coder-0.5b", 45, "q4_0")]


@pytest.mark.parametrize(("name", "n", "kv"), CASES)
def test_restored_is_never_stopped(
    real_model: Callable[[str], Path], tmp_path: Path, name: str, n: int, kv: str
) -> None:
    """The same 12 rows of logits, whether the state went through a file, in another context, or not."""
    model, path = runs.load(real_model(name)), tmp_path / "a"
    ids = runs.random_ids(n, 40000, seed=n)
    rows = []
    for restore in (False, True):
        with Context(model, ContextParams(n_ctx=1024, type_k=kv, type_v=kv)) as ctx:
            seq = ctx.new_sequence()
            if restore:
                row = load_state(ctx, path, seq).logits[0]
                assert seq.tokens.tolist() == ids
            else:
                row = runs.feed(ctx, [(seq, ids)], "last")[-1]
                save_state(ctx, path, seq, logits=row)
            found = [row]
            for _ in range(12):
                found.append(runs.feed(ctx, [(seq, [int(found[-1].argmax())])])[-1])
            rows.append(np.array(found))
    runs.assert_same_bits(rows[1], rows[0], name)
