"""`scripts/bench_state` on a model of no size: its fields, and what it refuses. Its bounds are for a quiet machine."""

import json
import sys
from pathlib import Path

import pytest

from scripts.bench import bench_state
from tests.make_models import make_model

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/PID/smaps is Linux's")


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tmp_path / "m.gguf")
    options = [str(model), "--tokens", "100", "--turns", "1", "--dir", str(tmp_path), "--json"]
    assert bench_state.main(options) in (0, bench_state.EXIT_MISSED)
    out = json.loads(capsys.readouterr().out)
    assert (out["model"], out["n_tokens"]) == ("m", 100)
    assert len(out["bounds"]) == 4
    assert out["bounds"]["two processes share the pages"]
    assert out["load_rss_kib"] == 0 < out["token_rss_kib"]
    assert all(out[name] > 0 for name in ("file_mb", "save_mb_s", "plain_write_mb_s", "load_ms", "compressed_mb"))
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
