"""`llmkit batched-bench` on a tiny model: the options, the rows, the streams, the exit codes."""

import json
from typing import Any

import pytest

from llmkit.bench.batched import BatchedRun, Interrupted
from llmkit.tools._interrupt import Interruption
from tests.make_models import make_model
from tests.tools.in_process import Finished, run_llmkit


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("batched") / "m.gguf"))


def llmkit(model: str, *args: str) -> Finished:
    return run_llmkit("batched-bench", "-m", model, "-t", "1", *args)


def rows(done: Finished) -> list[tuple[int, ...]]:
    """PP, TG, B and N_KV of the table's rows."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    return [tuple(int(cell) for cell in line.split("|")[1:5]) for line in lines]


def objects(model: str, *args: str) -> list[dict[str, Any]]:
    done = llmkit(model, *args, "--output-format", "jsonl", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_table_and_the_memory(model: str) -> None:
    done = llmkit(model, "-npp", "8,16", "-ntg", "2", "-npl", "1,3", "-c", "128")
    assert done.returncode == 0
    assert rows(done) == [(8, 2, 1, 10), (8, 2, 3, 30), (16, 2, 1, 18), (16, 2, 3, 54)]
    notes = [line for line in done.stderr.splitlines() if "KV" in line]
    assert len(notes) == 4
    assert notes[0].startswith("PP 8, TG 2, B 1: KV 0.0 MiB used")
    assert done.stdout.startswith(
        "\nllama_batched_bench: n_kv_max = 128, n_batch = 2048, n_ubatch = 512, flash_attn = -1"
    )
    assert done.stdout.endswith(" |\n\n")


def test_the_context_without_c_is_the_models(model: str) -> None:
    assert objects(model, "-npp", "4", "-ntg", "1")[0]["n_kv_max"] == 256


def test_options_reach_their_places(model: str) -> None:
    (row,) = objects(
        model, "-npp", "32", "-ntg", "3", "-np", "4", "-c", "90", "-b", "16", "-ub", "8", "-pps", "-tgs", "-fa", "on",
        "-ctk", "f32", "-ctv", "f32",
    )  # fmt: skip
    found = {key: row[key] for key in ("n_kv_max", "n_batch", "n_ubatch", "flash_attn", "is_pp_shared", "pl", "n_kv")}
    assert found == {
        "n_kv_max": 90, "n_batch": 16, "n_ubatch": 8, "flash_attn": 1, "is_pp_shared": 1, "pl": 4, "n_kv": 44,
    }  # fmt: skip
    assert (row["is_tg_separate"], row["n_threads"]) == (1, 1)
    (half,) = objects(model, "-npp", "32", "-ntg", "3", "-np", "4", "-c", "90", "-pps")
    assert row["kv_used_bytes"] == 2 * half["kv_used_bytes"] > 0


def test_a_shared_prompt_takes_memory_once(model: str) -> None:
    shared, apart = (objects(model, "-npp", "64", "-ntg", "1", "-npl", "3", *more)[0] for more in (["-pps"], []))
    assert (shared["n_kv"], apart["n_kv"]) == (67, 195)
    assert shared["kv_used_bytes"] * 9 == apart["kv_used_bytes"] * 5, "2 + 3 blocks, and 3 times 3"


def test_what_does_not_fit_is_shown(model: str) -> None:
    """L#13553."""
    done = llmkit(model, "-npp", "16", "-ntg", "16", "-npl", "1,128", "-c", "128")
    assert done.returncode == 0
    assert rows(done) == [(16, 16, 1, 32), (16, 16, 128, 4096)]
    assert "does not fit: 4096 tokens needed, 128 available" in done.stdout
    assert "B 128: does not fit: 4096 tokens needed, 128 available" in done.stderr
    assert [row["fits"] for row in objects(model, "-npp", "16", "-ntg", "16", "-npl", "1,128", "-c", "128")] == [
        True,
        False,
    ]


def test_kvu_is_noted_and_its_opposite_refused(model: str) -> None:
    done = llmkit(model, "-npp", "4", "-ntg", "1", "-kvu")
    assert done.returncode == 0
    assert "always shared" in done.stderr
    done = llmkit(model, "-npp", "4", "-ntg", "1", "-no-kvu")
    assert (done.returncode, done.stdout) == (1, "")
    assert "always shared" in done.stderr


def test_override_kv(model: str) -> None:
    (row,) = objects(model, "-npp", "4", "-ntg", "1", "--override-kv", "llama.context_length=int:64")
    assert row["n_kv_max"] == 64


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([], "-npp is missing"),
        (["-npp", "4"], "-ntg is missing"),
        (["-npp", "x", "-ntg", "1"], "-npp"),
        (["-npp", "4", "-ntg", "0"], "-ntg holds 0"),
        (["-npp", "4", "-ntg", "1", "-np", "0"], "-npl holds 0"),
        (["-npp", "4", "-ntg", "1", "-np", "2", "-npl", "2"], "-np and -npl"),
        (["-npp", "4", "-ntg", "1", "-fa", "off"], "-fa is 'off'"),
        (["-npp", "4", "-ntg", "1", "--output-format", "csv"], "--output-format"),
        (["-npp", "4", "-ntg", "1", "--override-kv", "a"], "--override-kv 'a'"),
    ],
)
def test_what_is_wrong_is_named(model: str, args: list[str], named: str) -> None:
    done = llmkit(model, *args)
    assert (done.returncode, done.stdout) == (1, "")
    assert named in done.stderr


def test_ctrl_c_shows_what_is_done(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, n = BatchedRun.run, 0

    def interrupted(self: BatchedRun, case: Any) -> Any:
        nonlocal n
        n += 1
        if n == 2:
            monkeypatch.setattr(Interruption, "__call__", lambda self: True)
            raise Interrupted
        return run(self, case)

    monkeypatch.setattr(BatchedRun, "run", interrupted)
    done = llmkit(model, "-npp", "4", "-ntg", "1", "-npl", "1,2,3")
    assert done.returncode == 130
    assert rows(done) == [(4, 1, 1, 5)]
    assert done.stdout.endswith(" |\n\n")
