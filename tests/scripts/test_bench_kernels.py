"""`scripts/bench_kernels` on a matrix of no size: its fields, its table, and what it refuses."""

import json

import pytest

from scripts.bench import bench_kernels


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_kernels, "N_ROWS", 32)
    monkeypatch.setattr(bench_kernels, "N_COLS", 256)
    monkeypatch.setattr(bench_kernels, "N_TOKENS", 8)
    monkeypatch.setattr(bench_kernels, "STREAMED_BYTES", 1 << 16)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_kernels.main(["--json", "-q", "q4_0", "Q2_K"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["peak_gop_s"] > 0
    first, second = out["types"]
    assert (first["type"], first["file_bpw"], first["tile_bpw"]) == ("Q4_0", 4.5, 4.5)
    assert (second["type"], second["memory"]) == ("Q2_K", 1.0)
    assert all(value > 0 for row in out["types"] for key, value in row.items() if key != "type")
    assert first["share_of_peak"] == pytest.approx(first["gemm_gop_s"] / out["peak_gop_s"])


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_kernels.main(["-q", "mxfp4"]) == 0
    out = capsys.readouterr().out
    assert "MXFP4" in out
    assert "GEMM GOP/s" in out


def test_an_unknown_type_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_kernels.main(["q9_k"]) == 1
    assert "'Q9_K'" in capsys.readouterr().err
