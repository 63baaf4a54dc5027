"""`llmkit state info|verify|diff|ls|convert`, and the two words that such a command has."""

import json
import os
from pathlib import Path

import pytest

from tests.make_models import make_model
from tests.tools.in_process import Finished, run_llmkit

TEXT = "the cat sat on the mat and the dog sat on the cat and all of them were glad of it in the end of the day"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("state") / "m.gguf", tokenizer="bpe", head_dim=64))


@pytest.fixture(scope="module")
def states(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a; b: compressed; c: with another end; d: with other keys."""
    folder = tmp_path_factory.mktemp("files")
    saved = {"a": [TEXT], "b": [TEXT, "--compress"], "c": [TEXT[:60] + " no"], "d": [TEXT, "-ctk", "q8_0"]}
    for name, (text, *options) in saved.items():
        done = run_llmkit("state", "save", "-m", model, "-p", text, str(folder / name), *options)
        assert done.returncode == 0
    return folder


def state(*args: object) -> Finished:
    return run_llmkit("state", *map(str, args))


def test_the_two_words() -> None:
    shown = state("--help").stdout
    for name in ("save", "load", "info", "verify", "diff", "ls", "convert"):
        assert f"  state {name}  " in shown
    assert state().returncode == 1
    assert "`llmkit state` needs a command" in state().stderr
    assert "did you mean `llmkit state info`?" in state("inof").stderr
    assert "`llmkit state info --help`" in state("info", "--no-such").stderr
    assert state("info", "--help").stdout.startswith("Usage: llmkit state info [OPTIONS]")


def test_info(states: Path) -> None:
    shown = state("info", states / "a").stdout
    for word in ("fingerprint", "llmkit-", "f16, f16", "sequence 0", "can be cut to anywhere", "version 1"):
        assert word in shown
    assert "compressed" in state("info", states / "b").stdout
    found = json.loads(state("info", states / "a", "--json").stdout)
    assert found["sequences"][0]["n_tokens"] == len(found["sequences"][0]["tokens"]) > 20


def test_what_a_terminal_would_obey_is_escaped(model: str, tmp_path: Path) -> None:
    name, title = "s\x1b[31m", "title=\x1b]0;x\x07\nmore é"
    run_llmkit("state", "save", "-m", model, "--ids", "5,6", str(tmp_path / name), "--meta", title)
    for done in (state("info", tmp_path / name), state("ls", tmp_path), state("verify", tmp_path / name)):
        assert done.stdout.replace("\n", "").isprintable()
        assert "\\x1b" in done.stdout
    assert r"\x1b]0;x\x07\nmore é" in state("info", tmp_path / name).stdout


def test_verify(states: Path, tmp_path: Path) -> None:
    done = state("verify", states / "a", states / "b")
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"{states / 'a'}: ok", f"{states / 'b'}: ok"])
    data = bytearray((states / "a").read_bytes())
    data[-100] ^= 1
    (tmp_path / "bad").write_bytes(data)
    done = state("verify", states / "a", tmp_path / "bad", tmp_path / "missing", "--json")
    assert done.returncode == 2
    assert [row.get("error") for row in json.loads(done.stdout)] == [None, "StateDamagedError", "NotAStateError"]


def test_diff(states: Path) -> None:
    same = state("diff", states / "a", states / "b")
    assert (same.returncode, same.stdout) == (0, "")
    done = state("diff", states / "a", states / "c", "--json")
    assert done.returncode == 2
    (found,) = json.loads(done.stdout)
    assert found["what"] == "sequence 0, tokens"
    assert "type_k" in state("diff", states / "a", states / "d").stdout


def test_diff_of_keys(model: str, states: Path, tmp_path: Path) -> None:
    """The same tokens, whose keys were computed by other weights that the file does not tell apart."""
    from llmkit.engine.context import Context
    from llmkit.engine.state.save_load import load_state, save_state
    from llmkit.models.model import load_model
    from llmkit.params import ContextParams

    with Context(load_model(model), ContextParams(n_ctx=64)) as ctx:
        seq = ctx.memory.sequence(0)
        load_state(ctx, states / "b", seq)  # unpacked, so it can be written to
        block = int(seq.chain.blocks(0)[0])
        ctx.kv.pool.view(block)[14] ^= 1  # a bit of a key of cell 7
        save_state(ctx, tmp_path / "changed", seq)
    done = state("diff", states / "a", tmp_path / "changed", "--json")
    (found,) = json.loads(done.stdout)
    assert found["what"] == "sequence 0, keys and values"
    assert found["first"].startswith("1 of ")
    assert found["second"] == "token 7 first"


def test_ls(states: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes((states / name).read_bytes())
    os.utime(tmp_path / "a", (0, 0))
    (tmp_path / "text").write_text("no state")
    (tmp_path / "cut").write_bytes((states / "a").read_bytes()[:5000])
    done = state("ls", tmp_path)
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["b", "a"]
    assert "StateTruncatedError" in done.stderr
    assert [Path(row["path"]).name for row in json.loads(state("ls", tmp_path, "--json").stdout)] == ["b", "a"]
    assert "is no folder" in state("ls", states / "a").stderr


@pytest.mark.parametrize("to", ["ggsq", "ggsn"])
def test_convert_there_and_back(model: str, states: Path, tmp_path: Path, to: str) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    assert state("convert", "-m", model, states / "a", there, "--to", to).returncode == 0
    assert there.read_bytes()[:4] == {"ggsq": b"qsgg", "ggsn": b"nsgg"}[to]
    done = state("convert", "-m", model, there, back)
    assert done.returncode == 0, done.stderr
    found = json.loads(state("diff", states / "a", back, "--json").stdout)
    assert [difference["what"] for difference in found] == ["metadata"]  # which say where it comes from
    assert json.loads(state("info", back, "--json").stdout)["metadata"]["from"] == "llama.cpp"


def test_a_session_lacks_its_last_token(model: str, states: Path, tmp_path: Path) -> None:
    """llama-completion computes it again, and refuses a file that has its keys."""
    from llmkit.files.llama_state import read_llama_state

    there, again = tmp_path / "there", tmp_path / "again"
    state("convert", "-m", model, states / "a", there, "--to", "ggsn")
    found = read_llama_state(there)
    assert [*found.cells[0].positions] == [*range(len(found.tokens) - 1)]
    assert state("convert", "-m", model, there, again, "--to", "ggsn").returncode == 0
    assert again.read_bytes() == there.read_bytes()
    run_llmkit("state", "save", "-m", model, "--ids", "5", str(tmp_path / "one"))
    assert "two or more" in state("convert", "-m", model, tmp_path / "one", tmp_path / "x", "--to", "ggsn").stderr
    assert not (tmp_path / "x").exists()


def test_convert_of_quantised_keys(model: str, states: Path, tmp_path: Path) -> None:
    """The types are the file's for ours; llama.cpp's file needs them said."""
    there = tmp_path / "there"
    assert state("convert", "-m", model, states / "d", there, "--to", "ggsq").returncode == 0
    assert state("convert", "-m", model, there, tmp_path / "x").returncode == 1
    assert state("convert", "-m", model, there, tmp_path / "x", "-ctk", "q8_0").returncode == 0


def test_convert_compresses(model: str, states: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    assert state("convert", "-m", model, states / "a", small, "--compress").returncode == 0
    assert small.stat().st_size < (states / "a").stat().st_size
    assert state("diff", states / "a", small).returncode == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a", "a"], "the two files are the same"),
        (["a", "x", "--to", "ggsq", "--compress"], "--compress is for llmkit's own files"),
        (["missing", "x"], "missing"),
        (["a", "x", "--to", "gguf"], "--to"),
    ],
)
def test_convert_refuses(
    model: str, states: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    monkeypatch.chdir(states)
    done = state("convert", "-m", model, *args)
    assert done.returncode == 1
    assert message in done.stderr
