"""What is written is, to the last byte, the file that llama-quantize writes: see whole_files."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.quantization.whole_files import CASES, RECORDED, digest, write_sources
from tests.tools.in_process import run_llmkit

EXPECTED = json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all sources."""
    folder = tmp_path_factory.mktemp("sources")
    write_sources(folder)
    return folder


@pytest.mark.parametrize(("case", "type"), [(case, type) for case in CASES for type in CASES[case][2]])
def test_bytes(case: str, type: str, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, flags, _ = CASES[case]
    monkeypatch.chdir(sources)
    done = run_llmkit("quantize", *flags, source, "out.gguf", type, "2")
    assert done.returncode == 0, done.stderr
    assert digest(sources / "out.gguf") == EXPECTED[case][type]
