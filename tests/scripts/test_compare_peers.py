"""scripts/compare_peers with engines that answer from a list: turns, medians, ratios, targets, the page."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmkit.bench.machine import Ceilings
from llmkit.errors import UsageError
from scripts.bench import compare_peers
from scripts.bench.compare_peers import main, parse_test
from scripts.bench.comparison import Comparison, Row, Turn, draw, page
from scripts.bench.jobs import Job
from scripts.bench.peers import LLAMA_CPP, LLAMA_CPP_AVX2
from tests.scripts.fake_peers import install


class FakeEngine:
    """Gives base, base + 1, ... for each job in turn, and writes down who was asked for what."""

    def __init__(self, name: str, base: float, log: list[tuple[str, list[str], int]]) -> None:
        self.name, self.pids, self._rate, self._log = name, list[int](), base, log

    def run(self, jobs: list[Job], reps: int = 1) -> list[list[float]]:
        self._log.append((self.name, [job.name for job in jobs], reps))
        found = []
        for _ in jobs:
            found.append([self._rate + i for i in range(reps)])
            self._rate += reps
        return found


def test_tests_as_they_are_typed() -> None:
    assert parse_test("pp512") == Job("prompt", 512)
    assert parse_test("tg64") == Job("generate", 64)
    assert parse_test("tg64@d4096") == Job("generate", 64, depth=4096)
    assert parse_test("pp16@d8") == Job("prompt", 16, depth=8)
    assert parse_test("8xtg32") == Job("together", 32, n_sequences=8, n_prompt=16)
    for text in ("", "512", "pp", "pp0", "8xpp4", "0xtg4", "2xtg4@d8", "tg4@8", "pp512,"):
        with pytest.raises(UsageError, match="no test"):
            parse_test(text)


def test_turns() -> None:
    """Each engine is first once; llama.cpp's depth comes once, with all its repetitions, in the middle."""
    log: list[tuple[str, list[str], int]] = []
    engines = [FakeEngine("llmkit", 100, log), FakeEngine("llama.cpp", 10, log)]
    jobs = [Job("prompt", 4), Job("generate", 2, depth=8)]
    rows, turns = compare_peers.compare("m", list(engines), jobs, 3)
    ours, theirs = ("llmkit", ["pp4", "tg2 @ d8"], 1), ("llama.cpp", ["pp4"], 1)
    deep = ("llama.cpp", ["tg2 @ d8"], 3)
    assert log == [ours, theirs, theirs, deep, ours, ours, theirs]
    assert [(row.model, row.test) for row in rows] == [("m", "pp4"), ("m", "tg2 @ d8")]
    assert rows[0].samples == {"llmkit": [100, 102, 104], "llama.cpp": [10, 11, 15]}
    assert rows[1].samples == {"llmkit": [101, 103, 105], "llama.cpp": [12, 13, 14]}
    assert [(turn.engine, turn.turn) for turn in turns] == [
        *(("llmkit", 0), ("llama.cpp", 0), ("llama.cpp", 1), ("llmkit", 1), ("llmkit", 2), ("llama.cpp", 2)),
    ]
    assert all(turn.other_cores is None or turn.other_cores >= 0 for turn in turns)


def test_a_disturbed_turn_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice at most here: the first turn recovers, the second never does and counts as it is."""
    disturbances = iter([0.9, 0.05, 0.9, 0.8, 0.7])

    class Watch:
        def __init__(self, workers: Any) -> None: ...

        def others(self) -> float:
            return next(disturbances)

    monkeypatch.setattr(compare_peers, "CpuWatch", Watch)
    rows, turns = compare_peers.compare("m", [FakeEngine("llmkit", 100, [])], [Job("prompt", 4)], 2, retries=2)
    assert rows[0].samples == {"llmkit": [101, 104]}
    assert [turn.other_cores for turn in turns] == [0.05, 0.7]


def test_rows() -> None:
    row = Row("smollm2", "pp512", {"llmkit": [200.0, 100.0, 900.0], "llama.cpp": [100.0], "ik_llama.cpp": []})
    assert row.rate("llmkit") == 200
    assert (row.ratio("llama.cpp"), row.ratio("ik_llama.cpp")) == (2.0, None)
    assert (row.target("llama.cpp"), row.target("ik_llama.cpp")) == (2.5, 1.0)
    assert Row("other", "pp512").target("llama.cpp") is None
    assert row.to_json()["ratio"] == {"llama.cpp": 2.0, "ik_llama.cpp": None}


MACHINE = {
    "cpu": "a processor", "n_cores": 2, "date": "2026-01-02", "n_threads": 2, "isa": "avx2", "bandwidth_gb_s": 10.04,
    "int8_gop_s": 900.0, "f32_gflop_s": 100.0, "versions": {"llmkit": "0.1", "llama.cpp": "9"},
}  # fmt: skip


def found() -> Comparison:
    rows = [
        Row("smollm2", "pp512", {"llmkit": [1000.0], "llama.cpp": [500.0]}),
        Row("smollm2", "tg64", {"llmkit": [99.96], "llama.cpp": [50.0]}),
    ]
    turns = [Turn("smollm2", "llmkit", 0, 1.0, None), Turn("smollm2", "llama.cpp", 0, 1.0, 0.012)]
    return Comparison(MACHINE, ["llmkit", "llama.cpp"], rows, turns, 12.0)


def test_the_table() -> None:
    lines = [re.split(r"  +", line.strip()) for line in found().table().splitlines()]
    assert lines[0] == ["model", "test", "llmkit", "llama.cpp", "to llama.cpp"]
    assert lines[2:] == [
        ["smollm2", "pp512", "1000", "500", "2.00 (of 2.5)"],
        ["smollm2", "tg64", "100.0", "50.0", "2.00"],
    ]


def test_the_page() -> None:
    text = page(found(), "scripts/compare_peers --rounds 3", "benchmarks.svg")
    assert "| smollm2" in text
    assert "2.00 (of 2.5)" in text
    assert "with 2 threads on a processor: memory 10.0 GB/s, 900 GOP/s int8, 100 GFLOP/s f32 (avx2)" in text
    assert "0.01 of 2 cores at worst" in text
    assert "llmkit 0.1, llama.cpp 9" in text
    assert "```\nscripts/compare_peers --rounds 3\n```" in text
    assert "![ratios](benchmarks.svg)" in text
    assert "![" not in page(found(), "", None)
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "Measured"))) <= 120


def test_the_plot(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    assert draw(found(), path)
    assert "<svg" in path.read_text()


@pytest.fixture
def fake(peer_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """compare_peers with fake engines, a fake machine and a repository in a temporary folder."""
    state: dict[str, Any] = {"others": 0.0, "opened": [], "root": tmp_path}
    install(LLAMA_CPP, {}, version="9")

    class Watch:
        def __init__(self, workers: Any) -> None: ...

        def others(self) -> Any:
            return state["others"]

    @contextmanager
    def open_fakes(path: Path, n_threads: int, names: list[str], repack: bool, isa: str | None) -> Iterator[Any]:
        state["opened"].append((path.name, n_threads, names, repack, isa))
        yield [FakeEngine(name, 10 * (i + 1), []) for i, name in enumerate(names)]

    monkeypatch.setattr(compare_peers, "CpuWatch", Watch)
    monkeypatch.setattr(compare_peers, "open_engines", open_fakes)
    monkeypatch.setattr(compare_peers, "measure_ceilings", lambda n: Ceilings(n, "avx2", 1.0, 2.0, 3.0))
    monkeypatch.setattr(compare_peers, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "m.gguf").touch()
    return state


def test_the_command(fake: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = str(tmp_path / "m.gguf")
    assert main([model, "--tests", "pp4,tg2", "--rounds", "2", "-t", "3", "--json"]) == 0
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert result["engines"] == ["llmkit", "llama.cpp"]
    assert [row["test"] for row in result["rows"]] == ["pp4", "tg2"]
    assert result["rows"][0]["median"] == {"llmkit": 11, "llama.cpp": 21}
    assert result["machine"]["versions"]["llama.cpp"] == "9"
    assert fake["opened"] == [("m.gguf", 3, ["llmkit", "llama.cpp"], False, None)]
    assert "warning" not in err


def test_engines_can_be_chosen(fake: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = str(tmp_path / "m.gguf")
    assert main([model, "--engines", "llama.cpp", "--ik-repack", "-q"]) == 0
    assert fake["opened"][0][2:] == (["llama.cpp"], True, None)
    assert capfd.readouterr().out.split()[:3] == ["model", "test", "llama.cpp"]
    install(LLAMA_CPP_AVX2, {}, version="9")
    assert main([model, "--isa", "avx2", "-q"]) == 0
    assert fake["opened"][-1][2:] == (["llmkit", "llama.cpp-avx2"], False, "avx2")
    assert main([model, "-q"]) == 0
    assert fake["opened"][-1][2:] == (["llmkit", "llama.cpp"], False, None)  # what was built for less is no peer here
    assert main([model, "--engines", "vllm"]) == 1
    assert "no engine 'vllm'" in capfd.readouterr().err
    assert main([model, "--rounds", "0"]) == 1
    assert main(["nowhere"]) == 1


def test_others_are_warned_of(fake: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fake["others"] = 0.75
    assert main([str(tmp_path / "m.gguf"), "-q"]) == 0
    assert "warning: other processes used 0.75 cores" in capfd.readouterr().err
    fake["others"] = None
    main([str(tmp_path / "m.gguf"), "-q"])
    assert "not known" in capfd.readouterr().err


def test_writing_the_page(fake: dict[str, Any], tmp_path: Path) -> None:
    assert main([str(tmp_path / "m.gguf"), "--tests", "pp4", "--write", "-q"]) == 0
    text = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert "\nscripts/compare_peers m.gguf --tests pp4 --rounds 2 -t " in text
    assert str(tmp_path) not in text
