"""Every number that llama-perplexity prints about the samples, against ours on the same model.

The logits differ by what float32 sums in another order make of them, and by llama.cpp's attention, which rounds to half
precision: 0.05% of a perplexity. Counts, orders and choices are equal.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.evaluate import samples
from tests.evaluate.samples import DATA
from tests.paths import DATA as SHARED_DATA
from tests.paths import need_shared
from tests.tools.in_process import run_llmkit

pytestmark = need_shared

NUMBER = re.compile(r"-?\d+\.?\d*")


def ours(*args: str) -> str:
    """stdout of `llmkit perplexity`."""
    model = ["-m", str(SHARED_DATA / "stories260K.gguf")]
    done = run_llmkit("perplexity", "-q", "-ctk", "f32", "-ctv", "f32", *model, *args)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def theirs(name: str, first: str) -> list[str]:
    """Recorded lines from the one that begins with `first` on, without empty ones at the end."""
    lines = (DATA / name).read_text().rstrip("\n").split("\n")
    return lines[next(i for i, line in enumerate(lines) if line.startswith(first)) :]


def assert_alike(got: list[str], want: list[str], rtol: float = 1e-3, atol: float = 2e-3) -> None:
    """The same words in the same columns, and nearly the same numbers."""
    for a, b in zip(got, want, strict=True):
        assert NUMBER.sub("#", re.sub(" +", " ", a)) == NUMBER.sub("#", re.sub(" +", " ", b)), (a, b)
        assert len(a) == len(b), (a, b)
        np.testing.assert_allclose(
            [*map(float, NUMBER.findall(a))], [*map(float, NUMBER.findall(b))], rtol, atol, err_msg=b
        )


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text").write_text(samples.TEXT)
    return str(tmp_path / "text")


def test_perplexity(text: str) -> None:
    lines = ours("-f", text, "-c", "64").splitlines()
    assert_alike(lines[:1], theirs("ppl.txt", "[1]"))
    assert lines[1].startswith("Final estimate: PPL = 19.2")


def test_the_other_output_type(text: str) -> None:
    lines = ours("-f", text, "-c", "64", "--ppl-output-type", "1").splitlines()
    assert_alike(lines[:-1], theirs("ppl_type_1.txt", "       0"), atol=4e-3)


def test_strided(text: str) -> None:
    """Only the first window is alike: in the others, llama.cpp forgets the begin token."""
    line = ours("-f", text, "-c", "32", "--ppl-stride", "20", "--chunks", "3").splitlines()[0]
    assert_alike([line.split(",")[0]], [theirs("ppl_stride.txt", "[1]")[0].split(",")[0]])


def test_kl_divergence(tmp_path: Path) -> None:
    """All of the table and all three blocks, over a base file that neither of us wrote."""
    from llmkit.evaluate.text import encode_text
    from llmkit.files.gguf_reader import open_gguf
    from llmkit.tokenizer import load_tokenizer

    with open_gguf(SHARED_DATA / "stories260K.gguf") as gguf:
        tokens = encode_text(load_tokenizer(gguf), samples.TEXT.removesuffix("\n"))
    (tmp_path / "base").write_bytes(samples.base_file(tokens, 64, 512))
    lines = ours("--kl-divergence", "--kl-divergence-base", str(tmp_path / "base")).splitlines()
    want = theirs("kl.txt", "chunk")
    assert len(lines) == len(want) == 10 + 1 + 7 + 1 + 13 + 1 + 17
    assert_alike(lines[:1], want[:1])
    assert_alike(lines[1:11], want[1:11], atol=6e-3)
    assert_alike(lines[11:], want[11:], rtol=1e-3, atol=0.06)  # percentiles of p are in percent, from few tokens


def test_hellaswag(tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text(samples.hellaswag_file())
    lines = ours("-f", str(tmp_path / "tasks"), "--hellaswag").splitlines()
    want = theirs("hellaswag.txt", "task")
    assert lines[: len(want)] == want
    assert len(lines) == len(samples.HELLASWAG_TASKS) + 2


@pytest.mark.parametrize(("name", "n_tasks"), [("winogrande.txt", 0), ("winogrande_some.txt", 5)])
def test_winogrande(name: str, n_tasks: int, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text(samples.winogrande_file() * (1 if n_tasks else 2))
    lines = ours("-f", str(tmp_path / "tasks"), "--winogrande", "--winogrande-tasks", str(n_tasks)).splitlines()
    want = theirs(name, "1")
    assert_alike(lines[: len(want)], want)
    assert len(lines) == (n_tasks or 12) + 1


@pytest.mark.parametrize(("name", "n_tasks"), [("multiple_choice.txt", 0), ("multiple_choice_some.txt", 7)])
def test_multiple_choice(name: str, n_tasks: int, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_bytes(samples.multiple_choice_file(samples.MULTIPLE_CHOICE_TASKS * 2))
    lines = ours(
        "-f", str(tmp_path / "tasks"), "--multiple-choice", "--multiple-choice-tasks", str(n_tasks)
    ).splitlines()
    want = theirs(name, "task")
    assert lines[: len(want)] == want
    assert lines[-2].startswith("Final result: ")
