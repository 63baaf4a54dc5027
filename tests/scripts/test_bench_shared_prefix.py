"""scripts/bench_shared_prefix on a tiny model: both sets, their equal logits, the figures."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmkit.errors import LlmkitError
from scripts.bench import bench_shared_prefix as bench
from tests.make_models import make_model


@pytest.fixture
def options(tmp_path: Path) -> Any:
    path = make_model(tmp_path / "m.gguf", n_ctx_train=2048)
    return bench._parser().parse_args([
        str(path), "--sequences", "3", "--prefix", "70", "--own", "4", "--tail", "5", "--tail-prefix", "40",
        "--rounds", "2",
    ])  # fmt: skip


def test_both_measurements(options: Any, capsys: pytest.CaptureFixture[str]) -> None:
    name = options.models[0]
    decoded, blocks = bench.decoding(name, options)
    assert blocks == (2 + 3) / 3  # two whole blocks of the prefix, and one of each sequence; one has three
    tails = bench.tails(name, options)
    bench.show([decoded, tails], {name: blocks}, None, as_json=True)
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["ratio"] > 0 and row["cpu_ratio"] > 0 for row in rows] == [True, True]


def test_other_logits_are_an_error(options: Any) -> None:
    sets = bench.Sets(Path(options.models[0]), 40, 4, options)
    with sets.ctx as ctx:
        sets.copy()
        ctx.kv.pool.data[ctx.kv.pool.block_bytes * int(sets.private[0].chain.blocks(0)[0]) :][:64] ^= 1
        with pytest.raises(LlmkitError, match="different logits"):
            sets.alternate(1, 1, lambda: None)
