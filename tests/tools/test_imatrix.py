"""`llmkit imatrix` as a whole program: each option by what it changes, each error by its name."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from llmkit.files.imatrix_file import Imatrix, read_imatrix, write_imatrix
from tests.engine_runs import need_engine
from tests.evaluate import samples
from tests.make_models import make_model
from tests.paths import DATA, REPO_ROOT, need_shared
from tests.tools.in_process import Finished, run_llmkit

need_engine()
pytestmark = need_shared

STORIES = str(DATA / "stories260K.gguf")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds `text`, and is the current one."""
    (tmp_path / "text").write_text(samples.TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def llmkit(*args: str, stdin: bytes | None = None, model: str | None = STORIES) -> Finished:
    return run_llmkit("imatrix", *(("-m", model) if model else ()), *args, stdin=stdin)


def collected(*args: str, stdin: bytes | None = None, out: str = "imatrix.gguf") -> Imatrix:
    done = llmkit("-q", "-c", "64", *args, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    return read_imatrix(out)


def refused(*args: str, stdin: bytes | None = None, model: str | None = STORIES) -> str:
    done = llmkit(*args, stdin=stdin, model=model)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    return done.stderr


def same(a: Imatrix, b: Imatrix, factor: float = 1) -> bool:
    pairs = [(a.entries[name], b.entries[name]) for name in a.entries]
    return set(a.entries) == set(b.entries) and all(
        np.allclose(x.sums, factor * y.sums, rtol=1e-6) and np.array_equal(x.counts, factor * y.counts)
        for x, y in pairs
    )


def test_the_file(here: Path) -> None:
    found = collected("-f", "text")
    assert len(found.entries) == 35
    assert (found.n_chunks, found.chunk_size, found.datasets) == (9, 64, ["text"])
    assert {entry.counts.tolist()[0] for entry in found.entries.values()} == {9 * 64}
    assert same(found, collected(stdin=samples.TEXT.encode()))
    assert same(found, collected("-f", "text", "-b", "64", "-ub", "16", "-t", "3", "--no-ppl"))


def test_values_are_llama_cpps(here: Path) -> None:
    """Recorded from llama-imatrix b11434: -c 64 --process-output over this text, sums over columns."""
    found = collected("-f", "text", "--process-output", "-ctk", "f32", "-ctv", "f32")
    sums = {name: float(entry.sums.sum()) for name, entry in found.entries.items()}
    assert len(sums) == 36
    for name, value in RECORDED.items():
        assert sums[name] == pytest.approx(value, rel=1e-3), name


RECORDED = {
    "blk.0.attn_q.weight": 47294.891,
    "blk.2.attn_output.weight": 3234.042,
    "blk.4.ffn_down.weight": 29635.965,
    "blk.4.ffn_up.weight": 33132.766,
    "output.weight": 157039.703,
}


def test_parts_of_a_text_add_up_to_the_whole(here: Path) -> None:
    whole = collected("-f", "text", "--chunks", "4")
    collected("-f", "text", "--chunks", "2", "-o", "first", out="first")
    collected("-f", "text", "--chunks", "2", "--chunk", "2", "-o", "second", out="second")
    joined = collected(
        "-f", "text", "--chunks", "2", "--from-chunk", "2", "--in-file", "first", "-o", "first", out="first"
    )
    assert same(whole, joined)
    assert joined.n_chunks == 4
    collected("-f", "text", "--chunks", "2", "-o", "first", out="first")
    done = llmkit("--in-file", "first,second", "-o", "both", "--json", model=None)
    assert json.loads(done.stdout) == {"output": "both", "n_files": 2, "n_entries": 35, "n_chunks": 4}
    assert same(whole, read_imatrix("both"))


def test_the_older_format(here: Path) -> None:
    whole = collected("-f", "text")
    old = collected("-f", "text", "--output-format", "dat", "-o", "old.dat", out="old.dat")
    assert old.is_legacy
    assert llmkit("-q", "--in-file", "old.dat", "-c", "64", "-o", "new", model=None).returncode == 0
    assert same(whole, read_imatrix("new"))


def test_output_and_json(here: Path) -> None:
    plain = llmkit("-f", "text", "-c", "64")
    assert plain.stdout.startswith("[1]")
    assert "\nFinal estimate: PPL = " in plain.stdout
    assert llmkit("-f", "text", "-c", "64", "--no-ppl").stdout == ""
    numbers = json.loads(llmkit("-f", "text", "-c", "64", "--json").stdout)
    assert (numbers["n_chunks_done"], len(numbers["chunks"]), numbers["n_entries"]) == (9, 9, 35)
    same_ppl = json.loads(run_llmkit("perplexity", "-m", STORIES, "-f", "text", "-c", "64", "--json").stdout)
    assert numbers["ppl"] == pytest.approx(same_ppl["ppl"], rel=1e-12)


def test_it_is_saved_at_intervals(here: Path) -> None:
    written: list[tuple[str, int]] = []

    def record(path: Any, imatrix: Imatrix) -> None:
        written.append((str(path), imatrix.n_chunks))
        write_imatrix(path, imatrix)

    args = ("-f", "text", "-b", "64", "--chunks", "5")
    with patch("llmkit.files.imatrix_file.write_imatrix", record):
        last = collected(*args, "-ofreq", "2", "--save-frequency", "3")
    name = "imatrix.gguf"
    assert written == [(name, 2), (f"{name}.at_3", 3), (name, 4), (name, 5)]
    assert same(read_imatrix(f"{name}.at_3"), collected("-f", "text", "--chunks", "3"))
    assert same(last, collected(*args))


def test_quantize_takes_it(here: Path) -> None:
    model = str(make_model(here / "m.gguf", tokenizer="spm", arch="qwen3moe", n_embd=256, n_ff=256, n_layer=1))
    done = llmkit("-q", "-f", "text", "-c", "64", model=model)
    assert (done.returncode, done.stderr) == (0, "")
    found = read_imatrix("imatrix.gguf")
    assert found.entries["blk.0.ffn_up_exps.weight"].counts.shape == (8,)
    assert found.entries["blk.0.ffn_up_exps.weight"].counts.sum() == found.n_chunks * 64 * 3
    done = run_llmkit("quantize", "-q", "--imatrix", "imatrix.gguf", model, "q.gguf", "IQ2_XS")
    assert done.returncode == 0


def test_statistics(here: Path) -> None:
    collected("-f", "text")
    done = llmkit("--in-file", "imatrix.gguf", "--show-statistics", model=None)
    assert done.returncode == 0
    assert "(35 tensors)" in done.stdout
    assert "(5 layers)" in done.stdout
    assert "     4 | blk.4.ffn_up.weight                      |" in done.stdout
    (values,) = json.loads(llmkit("--in-file", "imatrix.gguf", "--show-statistics", "--json", model=None).stdout)[
        "files"
    ]
    assert (len(values["tensors"]), values["layers"][0]["gain"]) == (35, None)
    assert "--show-statistics needs --in-file" in refused("--show-statistics", model=None)


def test_special_tokens_in_the_text(here: Path) -> None:
    (here / "special").write_text("</s>" * 300)
    few = llmkit("-q", "-f", "special", "-c", "64", "--parse-special", "--json")
    many = llmkit("-q", "-f", "special", "-c", "64", "--json")
    assert json.loads(few.stdout)["n_chunks"] < json.loads(many.stdout)["n_chunks"]


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ((), "at least 1024"),
        (("-c", "64", "--chunk", "8"), "--chunk 8 leaves too few"),
        (("-c", "64", "--chunk", "-1"), "--chunk is -1"),
        (("-ofreq", "-1"), "-ofreq is -1"),
        (("--chunks", "0"), "--chunks is 0"),
        (("--output-format", "json"), "gguf or dat is expected"),
        (("-o", "no/such/folder"), "is no directory"),
        (("-o", "."), "is a directory"),
        (("-o", "text"), "would overwrite what is read"),
        (("--in-file", "nothing"), "there is no such file"),
        (("--in-file", "text"), "is no importance matrix"),
        (("-q", "-v"), "exclude each other"),
    ],
)
def test_wrong_options(args: tuple[str, ...], what: str, here: Path) -> None:
    assert what in refused("-f", "text", *args)
    assert not (here / "imatrix.gguf").exists()
    assert (here / "text").read_text() == samples.TEXT


@pytest.mark.parametrize(("raw", "what"), [(b"", "is empty"), (b"\xff" * 9, "is not UTF-8")])
def test_bad_texts(raw: bytes, what: str, here: Path) -> None:
    assert what in refused(stdin=raw)


def test_the_file_of_another_model(here: Path) -> None:
    model = str(make_model(here / "m.gguf", tokenizer="spm"))
    assert llmkit("-q", "-f", "text", "-c", "64", "-o", "other", model=model).returncode == 0
    assert "All must have been made with one model" in refused("-f", "text", "-c", "64", "--in-file", "other")
    assert not (here / "imatrix.gguf").exists()


def test_a_failed_write_keeps_the_old_file(here: Path) -> None:
    (here / "imatrix.gguf").write_bytes(b"old")
    with patch("os.fsync", side_effect=OSError(28, "No space left on device")):
        done = llmkit("-f", "text", "-c", "64")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert (here / "imatrix.gguf").read_bytes() == b"old"
    assert not list(here.glob(".*tmp"))


# -- interruption -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stops_after() -> Iterator[Any]:
    """Makes Ctrl-C seem to come after so many questions."""
    with patch("llmkit.tools._interrupt.Interruption.__call__") as call:
        yield lambda n: setattr(call, "side_effect", [False] * n + [True] * 50)


def test_whole_chunks_are_kept(here: Path, stops_after: Any) -> None:
    stops_after(5)
    done = llmkit("-f", "text", "-c", "64", "-b", "64", "--no-ppl")
    assert done.returncode == 130
    found = read_imatrix("imatrix.gguf")
    assert 0 < found.n_chunks < 9
    assert f"interrupted after {found.n_chunks} of 9 chunks; they are in imatrix.gguf" in done.stderr
    assert {entry.counts.tolist()[0] for entry in found.entries.values()} == {found.n_chunks * 64}


def test_nothing_done_writes_nothing(here: Path, stops_after: Any) -> None:
    stops_after(0)
    done = llmkit("-f", "text", "-c", "64", "--json")
    assert done.returncode == 130
    assert "nothing was written" in done.stderr
    assert json.loads(done.stdout)["output"] is None
    assert not (here / "imatrix.gguf").exists()


def test_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "long").write_text(samples.TEXT * 400)
    out = tmp_path / "out"
    args = ["-m", STORIES, "-f", str(tmp_path / "long"), "-o", str(out), "-c", "64", "-b", "64", "-ub", "16"]
    child = subprocess.Popen(
        [sys.executable, "-m", "llmkit", "imatrix", *args], cwd=REPO_ROOT, stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert child.stderr is not None
    while "minutes to go" not in child.stderr.readline():
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, rest = child.communicate(timeout=120)
    assert child.returncode == 130
    assert "interrupted after" in rest
    assert read_imatrix(out).n_chunks >= 1
