"""scripts/bench_run: bounds, what is measured of a process, and the command with checks that cost nothing."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmkit.errors import LlmkitError
from scripts.bench import bench_run
from scripts.bench.bench_run import Check, main, run_process
from tests.make_models import make_model


def test_bounds() -> None:
    assert Check("a", 2.0, "s", 3.0).holds
    assert not Check("a", 3.1, "s", 3.0).holds
    assert Check("a", 0.6, "x", 0.5, most=False).holds
    assert not Check("a", 0.4, "x", 0.5, most=False).holds
    assert Check("a", 1e9, "s").holds
    assert Check("a", 9.0, "s", goal=1.0).holds
    assert Check("a", 3.14159, "s", 3.0, 1.0).cells() == ["a", "3.14", "s", "<= 3", "<= 1", "NO"]
    assert Check("a", 1.0, "x", None, 1.8, most=False).cells() == ["a", "1", "x", "", ">= 1.8", ""]


def test_a_process_is_measured() -> None:
    done = run_process([sys.executable, "-c", "import sys; print('out'); sys.stderr.write('err')"])
    assert (done.out, done.err) == ("out\n", "err")
    assert 0 < done.seconds < 30
    large = run_process([sys.executable, "-c", "data = b'x' * 200_000_000; print(len(data))"])
    assert 190e6 < large.rss - done.rss < 230e6


def test_a_process_gets_its_environment_and_its_failure_is_an_error() -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['LLMKIT_CACHE'])"]
    assert run_process(command, LLMKIT_CACHE="/some/where").out == "/some/where\n"
    with pytest.raises(LlmkitError, match="ended with 3") as caught:
        run_process([sys.executable, "-c", "import sys; sys.stderr.write('because'); sys.exit(3)"])
    assert caught.value.hint == "because"


def test_the_command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def good() -> Iterator[Check]:
        """Looks well."""
        yield Check("good", 1.0, "s", 2.0)

    def bad() -> Iterator[Check]:
        """Looks ill."""
        yield Check("bad", 3.0, "s", 2.0)

    monkeypatch.setattr(bench_run, "CHECKS", {"good": good, "bad": bad})
    assert main(["good"]) == 0
    out, err = capfd.readouterr()
    assert "good: Looks well." in err
    assert "bad" not in out
    assert main([]) == 2
    assert "NO" in capfd.readouterr().out
    assert main(["bad", "--json", "-q"]) == 2
    (found,) = json.loads(capfd.readouterr().out)["checks"]
    assert (found["name"], found["holds"], found["bound"]) == ("bad", False, 2.0)
    assert main(["ugly"]) == 1
    assert "no check 'ugly'" in capfd.readouterr().err


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model in the place of all real ones."""
    path = make_model(tmp_path / "tiny.gguf", type="Q8_0", tokenizer="spm", n_ctx_train=512)
    monkeypatch.setattr(bench_run, "find_model", lambda name: path)
    monkeypatch.setattr(bench_run, "REAL", ("tiny",))
    return path


@pytest.mark.usefixtures("tiny")
def test_the_checks_run() -> None:
    """On a tiny model; the figures need only be possible."""
    names = ("help", "memory", "shared", "idle", "busy", "threads")
    found = {name: list(bench_run.CHECKS[name]()) for name in names}
    assert [check.name for check in found["help"]] == ["--help"]
    (memory,) = found["memory"]
    assert 20 < memory.value < 1000
    assert memory.bound is not None
    assert 300 < memory.bound < 310
    both, each = (check.value for check in found["shared"])
    assert 0 < each <= both <= 2 * each  # of a model so small the file alone is mapped
    assert found["idle"][0].value < 0.5
    assert 0 < found["busy"][0].value < 20
    assert [round(check.value) >= 0 for check in found["threads"]] == [True, True]


@pytest.mark.usefixtures("tiny")
def test_start_is_timed_with_a_cache_of_its_own_where_it_must() -> None:
    names = [check.name for check in bench_run.check_start()]
    assert names == [
        "second run -n 8, tiny",
        "gemma to a ready tokenizer, first time",
        "gemma to a ready tokenizer, later",
    ]


@pytest.mark.usefixtures("tiny")
def test_the_first_run_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the command, since compiling takes half a minute."""
    write = "open(os.environ['LLMKIT_CACHE'] + '/x', 'w').write('y' * 2_000_000)"
    script = f"import os, sys; {write}; sys.stderr.write('compiling')"
    monkeypatch.setattr(bench_run, "run_command", lambda model: [sys.executable, "-c", script])
    seconds, says, leaves = bench_run.check_first()
    assert 0 < seconds.value < 30
    assert says.value == 1
    assert says.holds
    assert leaves.value == 2.0
