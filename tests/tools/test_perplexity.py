"""`llmkit perplexity` as a whole program: each option by what it changes, each error by its name."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pexpect
import pytest

from llmkit.errors import UsageError
from llmkit.tools import perplexity as command
from tests.engine_runs import need_engine
from tests.evaluate import samples
from tests.make_models import make_model
from tests.paths import DATA, REPO_ROOT, TINY, need_shared
from tests.tools.in_process import Finished, run_llmkit

need_engine()
pytestmark = need_shared

STORIES = str(DATA / "stories260K.gguf")
LLMKIT = [sys.executable, "-m", "llmkit", "perplexity"]


def llmkit(*args: str, stdin: bytes | None = None, model: str = STORIES) -> Finished:
    return run_llmkit("perplexity", "-m", model, *args, stdin=stdin)


def measured(*args: str, stdin: bytes | None = None) -> dict[str, Any]:
    done = llmkit("--json", "-q", *args, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def refused(*args: str, stdin: bytes | None = None, model: str = STORIES) -> str:
    done = llmkit(*args, stdin=stdin, model=model)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text").write_text(samples.TEXT)
    return str(tmp_path / "text")


# -- perplexity -------------------------------------------------------------------------------------------------------


def test_learned_positions_bound_a_chunk_and_not_a_batch(text: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"n_embd": 64, "n_ff": 128, "n_ctx_train": 64, "tokenizer": "bpe"}
    model = str(make_model(tmp_path / "m.gguf", arch="gpt2", **sizes))
    done = [llmkit("--json", "-q", "-f", text, "-c", "64", "-b", n, model=model) for n in ("64", "2048")]
    assert [value.returncode for value in done] == [0, 0], done[1].stderr
    assert json.loads(done[0].stdout)["ppl"] == json.loads(done[1].stdout)["ppl"]
    assert "positions" in refused("-f", text, "-c", "128", model=model)


def test_the_text_may_come_from_anywhere(text: str) -> None:
    raw = samples.TEXT.encode()
    results = [
        measured("-c", "64", "-f", text),
        measured("-c", "64", "-f", "-", stdin=raw),
        measured("-c", "64", stdin=raw),
    ]
    assert len({result["ppl"] for result in results}) == 1


def test_chunks_and_context(text: str) -> None:
    plain = measured("-f", text, "-c", "64")
    assert (plain["n_ctx"], plain["n_chunks"], plain["n_scored"], len(plain["chunks"])) == (64, 9, 9 * 31, 9)
    fewer = measured("-f", text, "-c", "64", "--chunks", "2")
    assert fewer["chunks"] == plain["chunks"][:2]
    assert fewer["ppl"] == plain["chunks"][1]
    assert measured("-f", text, "-c", "100")["n_chunks"] == 6
    assert refused("-f", text).count("1024") == 1  # the default is 512


def test_how_it_is_computed_does_not_matter(text: str) -> None:
    plain = measured("-f", text, "-c", "64")
    for args in (("-b", "64"), ("-b", "1"), ("-b", "200"), ("-ub", "7"), ("-t", "1"), ("-t", "3")):
        other = measured("-f", text, "-c", "64", *args)
        assert (other["chunks"], other["ppl_error"]) == (plain["chunks"], plain["ppl_error"]), args


@pytest.mark.parametrize(("args", "n"), [((), 9), (("-b", "64"), 1), (("-b", "200"), 3)])
def test_chunks_share_batches(text: str, args: tuple[str, ...], n: int) -> None:
    assert f" {n} chunks together" in llmkit("-f", text, "-c", "64", *args).stderr


def test_ubatch_and_threads_reach_the_engine(text: str) -> None:
    err = llmkit("-f", text, "-c", "64", "-ub", "16", "-t", "1", "-v").stderr
    assert "1 threads" in err
    assert "in passes of 16" in err


def test_kv_types_change_the_last_digits(text: str) -> None:
    full = measured("-f", text, "-c", "64", "-ctk", "f32", "-ctv", "f32")["ppl"]
    half = [measured("-f", text, "-c", "64", *args)["ppl"] for args in ((), ("-ctk", "f32"), ("-ctv", "f32"))]
    assert len({full, *half}) == 4
    assert half == pytest.approx([full] * 3, rel=2e-3)


def test_output_types_and_the_final_line(text: str) -> None:
    lines = llmkit("-f", text, "-c", "64", "-q").stdout.splitlines()
    assert lines[0].startswith("[1]25.0")
    assert lines[0].count(",") == 9
    assert lines[1].startswith("Final estimate: PPL = 19.2")
    rows = llmkit("-f", text, "-c", "64", "-q", "--ppl-output-type", "1").stdout.splitlines()
    assert [row.split()[0] for row in rows[:-1]] == [str(64 * i) for i in range(9)]
    assert rows[-1] == lines[-1]


def test_stride(text: str) -> None:
    strided = measured("-f", text, "-c", "32", "--ppl-stride", "20")
    assert (strided["n_ctx"], strided["n_scored"]) == (256, 20 * strided["n_chunks"])
    assert strided["chunks"] != measured("-f", text, "-c", "32", "--ppl-stride", "30")["chunks"]


def test_progress_and_speed_are_told_on_stderr(text: str) -> None:
    err = llmkit("-f", text, "-c", "64").stderr
    assert "minutes to go" in err
    assert "t/s" in err
    assert llmkit("-f", text, "-c", "64", "-q").stderr == ""


def test_a_context_longer_than_trained_is_warned_of(text: str, tmp_path: Path) -> None:
    model = str(make_model(tmp_path / "m.gguf", tokenizer="bpe", n_ctx_train=64))
    assert "trained on 64 tokens" in llmkit("-f", text, "-c", "128", model=model).stderr
    assert "trained on" not in llmkit("-f", text, "-c", "64", model=model).stderr


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "what"),
    [(b"", "stdin is empty"), (b"\n", "stdin is empty"), (b"ab\xff", "byte 2 is 0xff"), (b"Hello.", "1024")],
)
def test_bad_texts(raw: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(raw)
    err = refused("-f", str(tmp_path / "f"))
    assert what.replace("stdin", str(tmp_path / "f")) in err
    assert "hint:" in err


@pytest.mark.parametrize(
    "args",
    [
        ("-c", "3"), ("-c", "0"), ("--chunks", "0"), ("--ppl-output-type", "2"), ("--ppl-stride", "-1"), ("-b", "0"),
        ("--kl-divergence",), ("--kl-divergence", "--hellaswag"), ("--winogrande", "--hellaswag"), ("-ctk", "q9"),
        ("--hellaswag", "--hellaswag-tasks", "-1"), ("--hellaswag", "--save-all-logits", "x"), ("-q", "-v"),
        ("--ppl-stride", "16", "--save-all-logits", "x"), ("--winogrande", "--ppl-stride", "16"), ("-f", "absent"),
    ],
)  # fmt: skip
def test_wrong_options(text: str, args: tuple[str, ...]) -> None:
    assert refused("-f", text, *args).startswith("error: ")


def test_a_model_without_a_tokenizer_reads_no_text(text: str) -> None:
    assert "error:" in refused("-f", text, model=str(TINY / "llama-dense.gguf"))


def test_a_terminal_or_nothing_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(UsageError, match="there is no text"):
        command.perplexity(command.PerplexityRequest(STORIES))
    assert "stdin is closed" in refused()


# -- KL divergence ----------------------------------------------------------------------------------------------------


@pytest.fixture
def base(text: str, tmp_path: Path) -> str:
    measured("-f", text, "-c", "64", "--save-all-logits", str(tmp_path / "base"))
    return str(tmp_path / "base")


def test_saving_changes_nothing_else(text: str, tmp_path: Path) -> None:
    saved = measured("-f", text, "-c", "64", "--chunks", "3", "--kl-divergence-base", str(tmp_path / "f"))
    assert saved["ppl"] == measured("-f", text, "-c", "64", "--chunks", "3")["ppl"]
    assert (tmp_path / "f").stat().st_size == 20 + 4 * 3 * 64 + 3 * 31 * 2 * 516


def test_a_model_against_itself_has_none(base: str) -> None:
    found = measured("--kl-divergence", "--kl-divergence-base", base)
    assert abs(found["kld"]["mean"]) < 3e-6
    assert found["kld_percentiles"]["100"] < 2e-4
    assert found["same_top"]["mean"] > 0.99
    assert len(found["chunks"]) == 9
    out = llmkit("--kl-divergence", "--kl-divergence-base", base, "-q").stdout
    assert "Mean    KLD:  -0.00000" in out or "Mean    KLD:   0.00000" in out


def test_how_divergence_is_computed_does_not_matter(base: str) -> None:
    plain = measured("--kl-divergence", "--kl-divergence-base", base)
    for args in (("-b", "64"), ("-ub", "7"), ("-t", "1")):
        assert measured("--kl-divergence", "--kl-divergence-base", base, *args)["chunks"] == plain["chunks"]


def test_fewer_chunks_of_a_base(base: str) -> None:
    """And too few tokens for the closing statistics."""
    found = measured("--kl-divergence", "--kl-divergence-base", base, "--chunks", "2")
    assert found["n_chunks"] == 2
    out = llmkit("--kl-divergence", "--kl-divergence-base", base, "--chunks", "2", "-q").stdout
    assert "=====" not in out


def test_a_base_of_another_length_text_or_model(base: str, text: str, tmp_path: Path) -> None:
    against = ("--kl-divergence", "--kl-divergence-base", base)
    assert "64, not 128" in refused(*against, "-c", "128")
    assert measured(*against, "-c", "64", "-f", text)["n_chunks"] == 9
    (tmp_path / "other").write_text("Something else. " * 400)
    assert "another text" in refused(*against, "-f", str(tmp_path / "other"))
    other = str(make_model(tmp_path / "m.gguf", tokenizer="bpe"))
    assert "512 tokens; this one has" in refused(*against, model=other)
    (tmp_path / "cut").write_bytes(Path(base).read_bytes()[:-1])
    assert "bytes where" in refused("--kl-divergence", "--kl-divergence-base", str(tmp_path / "cut"))
    assert "no file of log-prob" in refused("--kl-divergence", "--kl-divergence-base", text)
    assert "cannot be read" in refused("--kl-divergence", "--kl-divergence-base", "absent")


def test_a_base_file_that_cannot_be_written(text: str) -> None:
    assert "cannot be written" in refused("-f", text, "-c", "64", "--save-all-logits", "/absent/f")


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_hellaswag(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(samples.hellaswag_file())
    found = measured("-f", str(tmp_path / "t"), "--hellaswag")
    assert (found["n_tasks"], found["accuracy"]) == (8, 0.875)
    assert measured("-f", str(tmp_path / "t"), "--hellaswag", "--hellaswag-tasks", "5")["accuracy"] == 0.8


def test_winogrande(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(samples.winogrande_file())
    found = measured("-f", str(tmp_path / "t"), "--winogrande")
    assert (found["n_tasks"], found["accuracy"]) == (6, pytest.approx(1 / 3))
    assert measured("-f", str(tmp_path / "t"), "--winogrande", "--winogrande-tasks", "2")["n_tasks"] == 2


def test_multiple_choice(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(samples.multiple_choice_file())
    found = measured("-f", str(tmp_path / "t"), "--multiple-choice")
    assert (found["n_tasks"], found["accuracy"], found["chance"]) == (5, 0.6, 5 / 16)
    few = measured("-f", str(tmp_path / "t"), "--multiple-choice", "--multiple-choice-tasks", "3")
    assert few["n_tasks"] == 3


@pytest.mark.parametrize("kind", ["--hellaswag", "--winogrande", "--multiple-choice"])
def test_bad_tasks(kind: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("nonsense\nand more")
    assert "error:" in refused("-f", str(tmp_path / "t"), kind)


def test_a_task_longer_than_the_context(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(samples.hellaswag_file().replace("Mom said", "Mom said and said " * 40))
    assert "give a larger -c" in refused("-f", str(tmp_path / "t"), "--hellaswag", "-c", "16")
    assert measured("-f", str(tmp_path / "t"), "--hellaswag", "-c", "64")["n_tasks"] == 8


# -- interruption -----------------------------------------------------------------------------------------------------


@pytest.fixture
def slow(tmp_path: Path) -> list[str]:
    """A text that takes a while: one chunk at a time."""
    (tmp_path / "long").write_text(samples.TEXT * 400)
    return ["-m", STORIES, "-f", str(tmp_path / "long"), "-c", "64", "-b", "64", "-ub", "16"]


def interrupted(args: list[str], *, after: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a run that gets Ctrl-C once stderr has said something."""
    child = subprocess.Popen([*LLMKIT, *args], cwd=REPO_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    while after not in child.stderr.readline():
        assert child.poll() is None
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err


def test_ctrl_c_shows_what_is_done(slow: list[str], tmp_path: Path) -> None:
    code, out, _ = interrupted([*slow, "--save-all-logits", str(tmp_path / "base")], after="minutes to go")
    assert code == 130
    assert "Partial estimate after " in out.splitlines()[-1]
    assert not (tmp_path / "base").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["long"]


def test_ctrl_c_with_json(slow: list[str]) -> None:
    code, out, _ = interrupted([*slow, "--json"], after="minutes to go")
    found = json.loads(out)
    assert (code, found["stop_reason"]) == (130, "interrupted")
    assert 0 < found["n_chunks_done"] == len(found["chunks"]) < found["n_chunks"]


def test_ctrl_c_before_the_first_chunk(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(command.Interruption, "__call__", lambda self: True)
    done = llmkit("-f", text, "-c", "64", "--json")
    assert done.returncode == 130
    assert json.loads(done.stdout)["n_chunks_done"] == 0
    assert "interrupted after 0 of 9" in done.stderr


def test_head_ends_it_quietly(slow: list[str]) -> None:
    run = " ".join(f'"{part}"' for part in [*LLMKIT, *slow])
    line = run + ' -q | head -c 20; echo " ${PIPESTATUS[0]}"'
    done = subprocess.run(["bash", "-c", line], cwd=REPO_ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("[1]")
    assert done.stdout.endswith(" 0\n")
    assert done.stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="needs a terminal")
def test_at_a_terminal_the_estimate_comes_before_the_stream(text: str) -> None:
    args = [*LLMKIT[1:], "-m", STORIES, "-f", text, "-c", "64"]
    child = pexpect.spawn(sys.executable, args, cwd=str(REPO_ROOT), encoding="utf-8", timeout=60)
    child.expect_exact("minutes to go")
    child.expect_exact("[1]25.0")
    child.expect_exact("Final estimate: PPL = ")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
