"""5,000 seeded mutations of tiny files: opened or refused by name, within 30 s and a memory limit (issue 2, item 7)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import REPO_ROOT

N = 5000
BUDGET_S = 30

OPENERS = {"tests.files.hostile:open_and_touch": N // 20, "tests.files.hostile:load_and_run": N // 50}
"""`module:function` of everything that takes the path of a model file, and how many mutations must at least pass: are
not so wild that nothing is left to touch."""


def feed(folder: Path, n: int, opener: str) -> dict[str, Any]:
    """What tests/files/hostile.py reports."""
    command = [sys.executable, "-m", "tests.files.hostile", str(n), "1", opener, str(folder)]
    done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize(("opener", "n_opened"), OPENERS.items())
def test_mutations_open_or_are_refused_by_name(tmp_path: Path, opener: str, n_opened: int) -> None:
    report = feed(tmp_path, N, opener)
    outcomes = report["outcomes"]
    assert not report["failures"], report["failures"][:5]
    assert sum(outcomes.values()) == N
    assert outcomes["opened"] > n_opened
    assert all(outcomes[kind] > N // 100 for kind in ("TruncatedFileError", "MetadataError", "TensorError")), outcomes
    assert report["seconds"] < BUDGET_S


def test_an_opener_that_trusts_its_file_is_caught(tmp_path: Path) -> None:
    report = feed(tmp_path, 600, "tests.files.hostile:takes_what_it_is_told")
    kinds = {failure.split(": ")[1] for failure in report["failures"]}
    assert {"MemoryError", "ValueError"} <= kinds, kinds
