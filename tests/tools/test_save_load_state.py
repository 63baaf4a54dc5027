"""`llmkit save-load-state`: every check on tiny models of each kind of memory, and on engines that are broken."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.engine.state import save_load
from llmkit.evaluate.state_checks import checks as module
from llmkit.evaluate.state_checks.checks import CHECKS
from llmkit.memory.memory import Memory
from tests.make_models import make_model
from tests.tools.in_process import Finished, run_llmkit

OURS = ["never_stopped", "foreign", "processes"]
THEIRS = ["baseline", "seq_rm", "state_load", "cp_h", "cp_d", "cp_h_s", "cp_d_s", "rt", "rf", "rot"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def llama(folder: Path) -> str:
    return str(make_model(folder / "llama.gguf", tokenizer="bpe", head_dim=64))


@pytest.fixture(scope="module")
def gemma(folder: Path) -> str:
    return str(make_model(folder / "gemma.gguf", arch="gemma3", window=32, type="Q8_0"))


def llmkit(*args: str) -> Finished:
    return run_llmkit("save-load-state", "-n", "6", *args)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check that starts two processes, which is most of the time."""
    for place in ("checks", "run"):
        checks = {name: check for name, check in CHECKS.items() if name != "processes"}
        monkeypatch.setattr(f"llmkit.evaluate.state_checks.{place}.CHECKS", checks)


def outcomes(done: Finished) -> dict[str, str]:
    """What each row says; rows are `name outcome detail`."""
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()[2:]]
    return {name: outcome for name, outcome, _ in rows}


def test_a_row_for_each_check(llama: str) -> None:
    done = llmkit("-m", llama, "-ctk", "q8_0", "-ctv", "q4_0")
    assert done.returncode == 0, done.stdout
    assert outcomes(done) == dict.fromkeys([*THEIRS, *OURS], "ok")


@pytest.mark.usefixtures("alone")
def test_the_usual_types(llama: str) -> None:
    done = llmkit("-m", llama)
    assert done.returncode == 0, done.stdout
    assert outcomes(done) == dict.fromkeys([*THEIRS, *OURS[:-1]], "ok")


def test_memory_with_a_window_and_a_model_without_texts(gemma: str) -> None:
    done = llmkit("-m", gemma, "--json")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    assert found["different"] is False
    assert [check["name"] for check in found["checks"]] == [*THEIRS, *OURS]
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name.pop("rot") == {"name": "rot", "outcome": "skipped", "detail": "heads of 16 values are not rotated"}
    assert {check["outcome"] for check in by_name.values()} == {"ok"}
    assert "pieces" in by_name["cp_h_s"]["detail"]


def test_a_folder_of_models(folder: Path, llama: str, gemma: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKS", {})
    monkeypatch.setattr("llmkit.evaluate.state_checks.run.CHECKS", {name: CHECKS[name] for name in ("rt", "rot")})
    (folder / "broken.gguf").write_bytes(b"GGUF")
    done = llmkit("--models", str(folder))
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines() if "-" not in line] == [
        ["model", "rt", "rot"],
        ["gemma.gguf", "ok", "skipped"],
        ["llama.gguf", "ok", "ok"],
    ]
    assert "broken.gguf" in done.stderr


# -- a broken engine ----------------------------------------------------------------------------------------------


def with_wrong_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading leaves a bit of the first block wrong."""
    load = save_load.load_state

    def wrong(ctx: Any, path: Any, into: Any = None) -> Any:
        info = load(ctx, path, into)
        pool = ctx.kv.pools[0]
        block = int(into.chain.blocks(0)[0])
        pool.addresses[block] = _changed(pool.view(block)).ctypes.data
        return info

    monkeypatch.setattr(module, "load_state", wrong)


_kept = []


def _changed(block: Any) -> Any:
    memory = np.empty(block.nbytes + 64, np.uint8)
    copy = memory[-memory.ctypes.data % 64 :][: block.nbytes]
    copy[:] = block
    copy[1:64:2] ^= 0x04  # an exponent's bit of each float16
    _kept.append(memory)
    return copy


@pytest.mark.usefixtures("alone")
def test_wrong_keys_are_noticed(llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_wrong_keys(monkeypatch)
    done = llmkit("-m", llama)
    assert done.returncode == 2
    failed = {name for name, outcome in outcomes(done).items() if outcome == "FAILED"}
    assert failed >= {"state_load", "cp_h", "cp_h_s", "never_stopped"}
    assert not failed & {"baseline", "seq_rm", "cp_d", "cp_d_s", "rot"}
    assert "NMSE" in done.stdout


@pytest.mark.usefixtures("alone")
def test_a_copy_that_loses_a_token_is_noticed(llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Memory.seq_cp
    monkeypatch.setattr(Memory, "seq_cp", lambda self, src, dst: copy(self, src, dst, 0, self.seq_pos_max(src)))
    done = llmkit("-m", llama)
    assert done.returncode == 2
    assert {name for name, outcome in outcomes(done).items() if outcome == "FAILED"} == {"cp_d", "cp_d_s"}


@pytest.mark.usefixtures("alone")
def test_a_reader_that_checks_nothing_is_noticed(llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmkit.files.state_file.StateFile.verify", lambda self, n_threads: None)
    monkeypatch.setattr(save_load, "check_description", lambda ctx, header, info: None)
    done = llmkit("-m", llama)
    assert done.returncode == 2
    assert {name for name, outcome in outcomes(done).items() if outcome == "FAILED"} >= {"rf", "rot", "foreign"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--models", "/nowhere"], "/nowhere holds no .gguf files"),
        (["-n", "1"], "n_predict is 1; at least 2"),
        (["-m", "x.gguf", "--models", "."], "models from -m and from --models"),
    ],
)
def test_wrong_arguments(args: list[str], message: str) -> None:
    done = llmkit(*args)
    assert done.returncode == 1
    assert message in done.stderr
