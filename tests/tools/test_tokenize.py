"""`llmkit tokenize`: each option's visible effect, where the text comes from, and what is refused."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.cli import main
from llmkit.files.gguf_writer import write_gguf
from tests.paths import DATA, REPO_ROOT, VOCAB, need_shared
from tests.tokenizer.vocabs import spm_metadata

PIECES = ["a", "b", "▁", "▁a", "\n", "\\", "n"]
A, B, SPACE, SPACE_A, NEWLINE, BACKSLASH, N = range(259, 266)


class Result:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def ids(self) -> list[int]:
        """The ids that --json printed."""
        value = json.loads(self.out)
        assert list(value) == ["ids"]
        ids = value["ids"]
        assert isinstance(ids, list)
        return ids


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds a vocabulary and nothing else."""
    path = tmp_path_factory.mktemp("vocab") / "vocab.gguf"
    write_gguf(path, {"general.architecture": "llama", **spm_metadata(PIECES, add_eos_token=True)})
    return path


@pytest.fixture
def tokenize(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(*args: str, stdin: bytes | None = None, model: str | None = str(model)) -> Result:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main(["tokenize", *(["-m", model] if model else []), *args])
        return Result(code, *capsys.readouterr())

    return call


# Formats


def test_a_token_a_line_as_llama_cpp_prints_it(tokenize: Any) -> None:
    result = tokenize("-p", "ab 🦙")
    lines = ["     1 -> '<s>'", "   262 -> ' a'", "   260 -> 'b'", "   261 -> ' '"]
    lines += [f"{3 + byte:6d} -> '\ufffd'" for byte in "🦙".encode()] + ["     2 -> '</s>'"]
    assert (result.code, result.out, result.err) == (0, "\n".join(lines) + "\n", "")


def test_ids_as_a_list(tokenize: Any) -> None:
    assert tokenize("-p", "ab", "--ids").out == f"[1, {SPACE_A}, {B}, 2]\n"


def test_json(tokenize: Any) -> None:
    assert tokenize("-p", "ab", "--json").out == f'{{"ids": [1, {SPACE_A}, {B}, 2]}}\n'


def test_show_count(tokenize: Any) -> None:
    plain = tokenize("-p", "ab").out
    assert tokenize("-p", "ab", "--show-count").out == plain + "Total number of tokens: 4\n"
    assert tokenize("-p", "ab", "--ids", "--show-count").out.endswith("]\nTotal number of tokens: 4\n")
    assert json.loads(tokenize("-p", "ab", "--json", "--show-count").out)["n_tokens"] == 4


def test_an_empty_text(tokenize: Any) -> None:
    assert tokenize("--json", stdin=b"").ids == [1, 2]
    assert tokenize("-p", "", "--no-bos").out == ""
    assert tokenize("-p", "", "--no-bos", "--ids").out == "[]\n"


# Options


def test_no_bos(tokenize: Any) -> None:
    assert tokenize("-p", "ab", "--no-bos", "--json").ids == [SPACE_A, B]


def test_no_parse_special(tokenize: Any) -> None:
    assert tokenize("-p", "</s>a", "--no-bos", "--json").ids == [2, SPACE_A]
    assert 2 not in tokenize("-p", "</s>a", "--no-bos", "--no-parse-special", "--json").ids


def test_escapes(tokenize: Any) -> None:
    assert tokenize("-p", r"a\n", "--no-bos", "--json").ids == [SPACE_A, NEWLINE]
    assert tokenize("-p", r"a\n", "-e", "--no-bos", "--json").ids == [SPACE_A, NEWLINE]
    assert tokenize("-p", r"a\n", "--no-escape", "--no-bos", "--json").ids == [SPACE_A, BACKSLASH, N]


def test_underscores_in_option_names(tokenize: Any) -> None:
    assert tokenize("-p", "ab", "--no_bos", "--json").ids == [SPACE_A, B]


# Where the text comes from


def test_stdin_is_taken_verbatim(tokenize: Any) -> None:
    assert tokenize("--no-bos", "--json", stdin=b"a\\n\n").ids == [SPACE_A, BACKSLASH, N, NEWLINE]
    assert tokenize("--no-bos", "--json", "-f", "-", stdin=b"a\n").ids == [SPACE_A, NEWLINE]
    carriage_return, nul = 3 + 0x0D, 3
    assert tokenize("--no-bos", "--json", stdin=b"a\r\n\0").ids == [SPACE_A, carriage_return, NEWLINE, nul]


def test_a_file_is_taken_verbatim(tokenize: Any, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\\n\n")
    assert tokenize("-f", str(tmp_path / "text"), "--no-bos", "--json").ids == [SPACE_A, BACKSLASH, N, NEWLINE]


def test_the_model_may_come_from_the_environment(tokenize: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMKIT_MODEL", str(model))
    assert tokenize("-p", "ab", "--json", model=None).ids == [1, SPACE_A, B, 2]


# Refusals


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-p", "a", "--ids", "--json"), "--ids and --json exclude each other"),
        (("-p", "a", "-f", "b"), "there are two prompts"),
        (("-f", "/nowhere/at/all"), "the prompt file /nowhere/at/all cannot be read"),
        (("-p", "a", "--ids", "1,2"), "unexpected extra argument"),
        (("-p", "a", "--nope", "1"), "No such option: --nope"),
    ],
)
def test_wrong_options(tokenize: Any, args: tuple[str, ...], said: str) -> None:
    result = tokenize(*args)
    assert result.code == 1
    assert result.out == ""
    assert said in result.err


def test_bytes_that_are_no_text(tokenize: Any) -> None:
    result = tokenize(stdin=b"a\xff")
    assert (result.code, result.out) == (1, "")
    assert "not UTF-8: byte 1 is 0xff" in result.err


def test_a_model_that_is_not_there(tokenize: Any, temp_cache: Path) -> None:
    assert "no file nowhere.gguf" in tokenize("-p", "a", model="nowhere.gguf").err
    result = tokenize("-p", "a", model="smollm2-135m")
    assert result.code == 1
    assert "llmkit pull smollm2-135m" in result.err


def test_a_file_without_a_tokenizer(tokenize: Any, tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    write_gguf(path, {"general.architecture": "llama"})
    result = tokenize("-p", "a", model=str(path))
    assert (result.code, result.out) == (1, "")
    assert "holds no tokenizer" in result.err
    assert "Traceback" not in result.err


def test_scores_of_a_wrong_type(tokenize: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    metadata = spm_metadata(PIECES) | {"tokenizer.ggml.scores": np.zeros(266, dtype=np.uint8)}
    write_gguf(path, {"general.architecture": "llama", **metadata})
    result = tokenize("-p", "a", model=str(path))
    assert result.code == 1
    assert "tokenizer.ggml.scores holds uint8 values" in result.err


# As a program


@need_shared
def test_a_vocabulary_only_file_in_a_pipeline() -> None:
    command = [sys.executable, "-m", "llmkit", "tokenize", "-m", str(VOCAB / "ggml-vocab-llama-spm.gguf"), "--json"]
    done = subprocess.run(command, input="This is 🦙.cpp".encode(), capture_output=True, check=True, cwd=REPO_ROOT)
    ids = [1, 910, 338, 29871, 243, 162, 169, 156, 29889, 8223]
    assert json.loads(done.stdout) == {"ids": ids}
    assert done.stderr == b""


@need_shared
def test_a_model_that_has_ids_only(tokenize: Any) -> None:
    result = tokenize("-p", "a", model=str(DATA / "tiny" / "llama-dense.gguf"))
    assert result.code == 1
    assert "holds no tokenizer for text" in result.err
