"""How the words of a command line are read: names, llama.cpp's flags, what there is not."""

import subprocess
import sys
from pathlib import Path

import pytest

from llmkit import cli
from llmkit.shell.coercion import Coercion
from llmkit.shell.llama_flags import all_flags, variable_of
from tests.paths import REPO_ROOT
from tests.shell.fake import install, refused, values
from tests.tools.in_process import run_llmkit


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def test_flags_without_a_meaning_here_are_taken_with_their_values() -> None:
    flags = (
        "-ngl 99 --mlock --no-mmap -fa on -sm layer --tensor-split 3,1 -mg 0 -nkvo --no-perf --simple-io --no-warmup"
    )
    flags += " --no-context-shift -tb 8 --poll 50 --prio 2 -C ff --numa distribute --n_gpu_layers=4 -fa"
    done = run_llmkit("fake", *flags.split(), "--top-k", "7", "-p", "x")
    assert (done.returncode, done.stdout) == (0, "7 x\n")
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("ignored: -ngl (everything is computed by the CPU); --mlock (")
    assert "--n_gpu_layers" in lines[0]
    assert run_llmkit("fake", "-ngl", "99", "-q").stderr == ""


def test_an_empty_name_of_a_model_or_file_is_not_the_default() -> None:
    for name in ("-m", "--model", "--log-file"):
        assert f"error: {name} is given an empty text" in refused(name, "")
    assert "error: --model is given an empty text" in refused("--model=")
    assert values("-m", "x", "-p", "", "--stop", "")["stop"] == [""]
    assert "error: the name of the model is empty" in run_llmkit("pull", "").stderr


def test_a_value_is_never_taken_for_a_flag() -> None:
    assert run_llmkit("fake", "-p", "-ngl", "--top-k", "3").stdout == "3 -ngl\n"
    assert values("--stop", "--lora", "--stop=--rpc")["stop"] == ["--lora", "--rpc"]
    assert run_llmkit("fake", "--", "-ngl").stdout == "0 \n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--lora x.gguf", "--lora is not there: llmkit loads no adapters"),
        ("--mmproj x.gguf", "--mmproj is not there: llmkit takes no images"),
        ("--metrics", "No such option: --metrics"),
        ("--rpc host:1", "--rpc is not there: llmkit computes on one machine"),
        ("--rope-scale 2", "--rope-scale is not there: the model file's own values count; --override-kv"),
        ("--cache-list", "--cache-list is not there: `llmkit pull --list`"),
        ("--context-shift", "llama.cpp has --context-shift, but `llmkit fake` does not"),
        ("--ctx-size 2", "llama.cpp has --ctx-size, but `llmkit fake` does not"),
        ("--temo 2", "No such option: --temo\nhint: did you mean --temp?"),
        ("--Swa-full", "No such option: --Swa-full\nhint: did you mean --swa-full?"),
        ("-tn 5", "No such option: -tn"),
        ("-vq", "No such option: -vq"),
        ("-ngl", "Option '-ngl' requires an argument."),
        ("--top-k", "Option '--top-k' requires an argument"),
        ("--top-k many", "Invalid value for '--top-k' / '-tk': 'many' is not a whole number."),
        ("--temp 1,5", "Invalid value for '--temp': '1,5' is not a number."),
        ("--swa-full=1", "does not take a value"),
    ],
)
def test_what_there_is_not(args: str, said: str) -> None:
    assert said in refused(*args.split())


def test_refused_by_another_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "server")
    assert "--mmproj is not there: llmkit takes no images" in refused("--mmproj", "x.gguf")
    assert "-md is not there: llmkit has no speculative decoding" in refused("-md", "x.gguf")
    assert "--embeddings is not there: llmkit computes no embeddings" in refused("--embeddings")


def test_a_number_may_follow_a_letter_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_llmkit("fake", "-p5", "--top_k", "1").stdout == "1 5\n"
    assert run_llmkit("fake", "-p-5").stdout == "0 -5\n"
    assert run_llmkit("fake", "-p=5").stdout == "0 5\n"


def test_a_variable_of_a_refused_flag_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_ROPE_SCALE", "2")
    assert "warning: LLAMA_ARG_ROPE_SCALE is set, which llmkit does not use: the model" in run_llmkit("fake").stderr


def test_sampling_where_nothing_is_sampled() -> None:
    done = run_llmkit("tokenize", "--temp", "0", "-p", "x", "-m", "/no/such.gguf")
    assert "--temp (this command chooses no tokens)" in done.stderr
    assert run_llmkit("inspect", "--temp", "0", "x").stderr.startswith("error: No such option: --temp")


def test_what_a_command_has_is_never_in_the_tables_way() -> None:
    """Each option of each command, with the names that llama.cpp has for it, is the command's own."""
    from llmkit.shell.arguments import Reader
    from llmkit.shell.llama_flags import CommandFlags

    for name in cli.COMMANDS:
        options = cli._build(name).options
        reader = Reader(name, options, CommandFlags(name))
        for option in options:
            for word in (*option.opts, *option.secondary_opts):
                line = reader.read([word.strip(), "1", "1"])
                assert option.name in line.given, (name, word)
                assert not line.ignored


def test_every_command_has_the_common_options() -> None:
    for name in cli.COMMANDS:
        options = {word for option in cli._build(name).options for word in option.opts}
        assert {"-v", "-q", "--log-file", "--color", "--config", "--help"} <= options, name
        assert ("--model" in options) == ("-hf" in options) == ("-mu" in options), name


@pytest.mark.parametrize(
    "args",
    ["run -p x", "tokenize -p x", "inspect", "bench", "batched-bench -npp 1 -ntg 1 -npl 1", "passkey",
     "perplexity -f {f}", "imatrix -f {f}", "save-load-state", "serve --port 0"],
    ids=lambda args: args.split()[0],
)  # fmt: skip
def test_a_model_of_the_hub_for_every_command(args: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text " * 100)
    done = run_llmkit(*args.format(f=tmp_path / "text").split(), "-hf", "no/such:Q4_0")
    assert done.returncode == 1
    assert "the model hf:no/such:Q4_0 has not been fetched yet" in done.stderr
    assert "run `llmkit pull hf:no/such:Q4_0`" in done.stderr


def test_pydantic_is_not_needed() -> None:
    """Typer would load it to turn texts into numbers."""
    code = "import sys; from llmkit.cli import main; main(['tokenize', '-m', '/no/such.gguf', '-p', 'x', '--ids']);"
    code += "print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO_ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n"
    for name in cli.COMMANDS:
        for param in cli._build(name).parser.params:
            assert isinstance(param._runtime_param, Coercion), (name, param.name)


def test_the_table() -> None:
    flags = all_flags()
    assert len(flags) > 300
    assert not [flag for flag in flags if flag.ignored and flag.refused]
    assert [name for flag in flags for name in flag.names if not name.startswith("-")] == []
    for names, variable in {
        "-m --model": "LLAMA_ARG_MODEL",
        "-c --ctx-size": "LLAMA_ARG_CTX_SIZE",
        "-n --n-predict --predict": "LLAMA_ARG_N_PREDICT",
        "-t --threads": "LLAMA_ARG_THREADS",
        "-b --batch-size": "LLAMA_ARG_BATCH",
        "-n --n-gen": "",
        "-s --seed": "",
    }.items():
        assert variable_of(names.split()) == variable
