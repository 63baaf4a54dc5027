"""`llmkit passkey`: the options, the exit codes, the sweep; on a tiny model that finds nothing, and a real one."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmkit.evaluate.passkey import choose_task
from llmkit.tools._interrupt import Interruption
from llmkit.tools._passkey_sweep import sweep_lengths, sweep_tasks
from tests.make_models import make_model
from tests.tools.in_process import Finished, run_llmkit


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("passkey") / "m.gguf"
    return str(make_model(path, tokenizer="bpe", n_ctx_train=4096))


def llmkit(model: str, *args: str) -> Finished:
    return run_llmkit("passkey", "-m", model, "--junk", "3", *args)


def test_not_found_is_exit_code_2(model: str) -> None:
    done = llmkit(model, "--pos", "1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("n_len = ")
    assert "n_ctx = 4096, n_kv_req = 4128, n_grp = 1, n_batch = 2048, n_junk = 3, i_pos = 1" in done.stderr
    assert "\npasskey = 39384, inserted at position 1 / 3 (token pos: ~" in done.stderr
    assert "\n What is the pass key? The pass key is\n" in done.stderr
    assert "\ndecoded 16 tokens in " in done.stderr
    assert done.stderr.endswith("the pass key 39384 was not found\n")


def test_found_is_exit_code_0(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmkit.evaluate.passkey.PasskeyTask.is_found", lambda self, answer: True)
    done = llmkit(model)
    assert done.returncode == 0
    assert done.stderr.endswith("the pass key was found\n")


def test_json(model: str) -> None:
    done = llmkit(model, "--json", "-q", "-n", "3", "--keep", "7", "-s", "5")
    assert (done.returncode, done.stderr) == (2, "")
    value = json.loads(done.stdout)
    task = choose_task(3, -1, 5)
    assert list(value) == [
        "model", "n_ctx_train", "n_grp", "n_keep", "passkey", "n_junk", "pos", "n_tokens", "n_shifts", "answer",
        "found", "seconds",
    ]  # fmt: skip
    assert (value["passkey"], value["pos"], value["n_keep"], value["found"]) == (task.passkey, task.pos, 7, False)


def test_a_random_seed_and_a_given_one(model: str) -> None:
    keys = [json.loads(llmkit(model, "--json", "-q", "-n", "1", *s).stdout)["passkey"] for s in ([], [], ["-s", "9"])]
    assert keys[0] == keys[1] == choose_task(3, -1, 1).passkey
    assert keys[2] == choose_task(3, -1, 9).passkey != keys[0]
    assert llmkit(model, "-s", "-1", "-q", "-n", "1").returncode == 2


def test_the_training_context_can_be_set_low(model: str) -> None:
    err = llmkit(model, "-n", "1", "--override-kv", "llama.context_length=int:3000", "-gan", "1").stderr
    assert "n_ctx = 3000, n_kv_req = 3032" in err


def test_a_sweep(model: str) -> None:
    done = llmkit(model, "--sweep", "--junk", "2,4", "-n", "1")
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[0].split()[0] == "position"
    assert lines[0].count("tokens") == 2
    assert [line.split() for line in lines[2:]] == [[f"{depth}", "%", "-", "-"] for depth in (0, 25, 50, 75, 100)]
    value = json.loads(llmkit(model, "--sweep", "--junk", "2,4", "-n", "1", "--json", "-q").stdout)
    assert [a["n_junk"] for a in value["attempts"]] == [2] * 5 + [4] * 5
    assert [a["pos"] for a in value["attempts"]] == [0, 0, 0, 1, 1, 0, 1, 2, 2, 3]


def test_what_a_sweep_tries() -> None:
    assert sweep_lengths([100]) == [25, 50, 75, 100]
    assert sweep_lengths([2]) == [1, 2]
    assert sweep_lengths([30, 10, 30]) == [10, 30]
    tasks = sweep_tasks([10, 20], 1)
    assert len({task.passkey for task in tasks}) == len(tasks)
    assert [task.pos for task in tasks[5:]] == [0, 5, 10, 14, 19]


def test_a_plot(model: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "sweep.png"
    done = llmkit(model, "--sweep", "--junk", "2", "-n", "1", "--plot", str(path))
    assert done.returncode == 2
    assert path.read_bytes().startswith(b"\x89PNG")
    done = llmkit(model, "--sweep", "--junk", "2", "-n", "1", "--plot", str(tmp_path / "no" / "sweep.png"))
    assert (done.returncode, done.stdout) == (1, ""), "told before the sweep"
    assert "the plot cannot be written" in done.stderr


def test_a_plot_without_matplotlib(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = llmkit(model, "--sweep", "--plot", "sweep.png")
    assert done.returncode == 1
    assert "matplotlib" in done.stderr


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--junk", "0"], "--junk is 0"),
        (["--junk", "1,2"], "more than one length"),
        (["--junk", "x"], "--junk"),
        (["--pos", "3"], "--pos is 3"),
        (["--keep", "-1"], "--keep is -1"),
        (["--keep", "-2147483648"], "--keep is -2147483648"),
        (["--keep", "500", "-c", "400"], "--keep 500"),
        (["-n", "0"], "-n is 0"),
        (["-gan", "0"], "-gan is 0"),
        (["-gan", "3", "-gaw", "8"], "-gaw"),
        (["-gaw", "8"], "-gaw"),
        (["-s", "-2"], "--seed is -2"),
        (["--plot", "a.png"], "--plot draws a sweep"),
        (["--sweep", "--pos", "1"], "--pos is one place"),
        (["--override-kv", "llama.context_length=512"], "is not KEY=TYPE:VALUE"),
    ],
)
def test_what_is_wrong_is_named(model: str, args: list[str], named: str) -> None:
    done = llmkit(model, *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert named in done.stderr


def test_ctrl_c(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interruption, "__call__", lambda self: True)
    assert llmkit(model).returncode == 130


def test_found_at_two_thousand_tokens(real_model: Callable[[str], Path]) -> None:
    path = str(real_model("qwen2.5-coder-0.5b"))
    done = run_llmkit("passkey", "-m", path, "--junk", "92", "--pos", "30", "--json", "-q")
    value = json.loads(done.stdout)
    assert value["n_tokens"] > 2000
    assert (done.returncode, value["found"]) == (0, True), value
