"""`llmkit run` with a fake engine: each option's visible effect, the streams, the JSON, errors."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.fake_engine import BOS, EOS, FakeEngine


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


GREEDY = ("--temp", "0")


# Text and messages


def test_the_prompt_and_the_text_go_to_stdout(run: Any, engine: FakeEngine) -> None:
    result = run("-p", "Hello", *GREEDY)
    assert (result.code, result.out) == (0, "Hello world")


def test_timings_go_to_stderr(run: Any, engine: FakeEngine) -> None:
    err = run("-p", "Hello", *GREEDY).err
    assert [line.split()[0] for line in err.splitlines()] == ["load", "kernels", "prompt", "decode", "first"]
    assert "6 tokens" in err
    assert engine.ctx.n_warm_ups == 1


@pytest.mark.parametrize("flag", ["-q", "--quiet"])
def test_quiet_says_nothing(run: Any, engine: FakeEngine, flag: str) -> None:
    assert run("-p", "Hello", flag, *GREEDY).err == ""


@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_verbose_says_more(run: Any, engine: FakeEngine, flag: str) -> None:
    err = run("-p", "Hi", flag, "-s", "77").err
    assert f"prompt: 3 tokens: {BOS},72,105" in err
    assert "seed 77" in err
    assert "top-k 40" in err
    assert "stop: eos" in err


def test_quiet_and_verbose_exclude_each_other(run: Any, engine: FakeEngine) -> None:
    assert run("-p", "a", "-q", "-v").code == 1


def test_no_display_prompt(run: Any, engine: FakeEngine) -> None:
    assert run("-p", "Hello", "--no-display-prompt", *GREEDY).out == " world"
    assert run("-p", "Hello", "--no-display-prompt", "--display-prompt", *GREEDY).out == "Hello world"


def test_only_whole_characters_are_written(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeEngine("é🦙".encode()).install(monkeypatch)
    pieces: list[str] = []
    monkeypatch.setattr("llmkit.report.stream", pieces.append)
    run("-p", "", *GREEDY)
    assert [p for p in pieces if p] == ["é", "🦙"]


def test_bytes_that_are_no_character_are_shown_as_such(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeEngine(b"a\xff\xf0\x9f").install(monkeypatch)
    assert run("-p", "", *GREEDY).out == "a\ufffd\ufffd"


# The prompt


def test_a_prompt_from_a_file(run: Any, engine: FakeEngine, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b" a\\n\r\n")
    for flag in ("-f", "--file"):
        assert run(flag, str(tmp_path / "p"), "--json").json["prompt_ids"] == [BOS, *b" a\\n\r\n"]


@pytest.mark.parametrize("args", [(), ("-f", "-")])
def test_a_prompt_from_a_pipe(
    run: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    pipe(monkeypatch, "piped\\t\n")
    assert run("--json", *args).json["prompt_ids"] == [BOS, *b"piped\\t\n"]


def test_escapes_in_a_prompt(run: Any, engine: FakeEngine) -> None:
    assert run("--prompt", "a\\n", "--json").json["prompt_ids"] == [BOS, *b"a\n"]
    for flag in ("-e", "--escape"):
        assert run("-p", "a\\n", "--no-escape", flag, "--json").json["prompt_ids"] == [BOS, *b"a\n"]
    assert run("-p", "a\\n", "--no-escape", "--json").json["prompt_ids"] == [BOS, *b"a\\n"]


def test_an_empty_prompt_is_the_begin_token(run: Any, engine: FakeEngine) -> None:
    result = run("-p", "", "--json", *GREEDY).json
    assert (result["prompt_ids"], result["text"]) == ([BOS], " world")


def test_an_empty_prompt_without_a_begin_token_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeEngine(add_bos=False).install(monkeypatch)
    result = run("-p", "")
    assert (result.code, result.out) == (1, "")
    assert "the prompt is empty" in result.err


@pytest.mark.parametrize("args", [("-p", "a", "-f", "b"), ("-p", "a", "--ids", "1"), ("-f", "a", "--ids", "1")])
def test_two_prompts_are_refused(run: Any, engine: FakeEngine, args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.code == 1
    assert "two prompts" in result.err
    assert engine.contexts == []


# Ids


def test_ids_instead_of_a_text(run: Any, engine: FakeEngine) -> None:
    result = run("--ids", "72,105", "--json", *GREEDY).json
    assert result["prompt_ids"] == [72, 105]
    assert result["text"] == " world"
    assert run("--ids", "72,105", *GREEDY).out == "Hi world"


def test_ids_of_a_model_without_a_tokenizer_come_out_as_ids(run: Any, bare_engine: FakeEngine) -> None:
    assert run("--ids", "1,2", "-n", "3", *GREEDY).out == "1,2,97,98,99\n"
    assert run("--ids", "1,2", "-n", "3", "--no-display-prompt", *GREEDY).out == "97,98,99\n"
    result = run("--ids", "1,2", "-n", "3", "--json", "--logprobs", "1", *GREEDY).json
    assert (result["ids"], result["text"]) == ([97, 98, 99], None)
    assert result["logprobs"][0]["token"] is None


def test_ids_beyond_the_vocabulary_are_refused(run: Any, bare_engine: FakeEngine) -> None:
    result = run("--ids", "1,258")
    assert result.code == 1
    assert "258" in result.err
    assert run("--ids", "1,257", "-n", "0").code == 0


def test_ids_that_are_none_are_refused(run: Any, engine: FakeEngine) -> None:
    assert run("--ids", "1,x").code == 1
    assert run("--ids", "").code == 1


# How much


@pytest.mark.parametrize("flag", ["-n", "--n-predict", "--predict", "--n_predict"])
def test_n_limits(run: Any, engine: FakeEngine, flag: str) -> None:
    result = run("-p", "Hello", flag, "3", "--json", *GREEDY).json
    assert (result["text"], result["stop_reason"]) == (" wo", "limit")


def test_n_0_computes_the_prompt_only(run: Any, engine: FakeEngine) -> None:
    result = run("-p", "Hello", "-n", "0", "--json").json
    assert (result["ids"], result["text"], result["stop_reason"]) == ([], "", "limit")
    assert result["timings"]["prompt_n"] == 6
    assert result["timings"]["first_token_ms"] is None


@pytest.mark.parametrize("flag", ["-c", "--ctx-size", "--ctx_size"])
def test_the_context_limits(run: Any, engine: FakeEngine, flag: str) -> None:
    result = run("-p", "Hello", flag, "8", "--json", *GREEDY).json
    assert (result["text"], result["stop_reason"]) == (" wo", "context")


def test_a_prompt_longer_than_the_context_is_refused_before_anything_is_computed(run: Any, engine: FakeEngine) -> None:
    result = run("-p", "Hello", "-c", "5", "--json")
    assert (result.code, result.out) == (1, "")
    assert "6 tokens" in result.err
    assert "holds 5" in result.err
    assert (engine.ctx.calls, engine.ctx.n_warm_ups) == ([], 0)


@pytest.mark.parametrize("flag", ["-b", "--batch-size"])
def test_the_batch_is_the_chunk(run: Any, engine: FakeEngine, flag: str) -> None:
    run("-p", "Hello", flag, "4", "-n", "1")
    assert [len(tokens) for tokens, _ in engine.ctx.calls] == [4, 2]


def test_ctrl_c_waits_for_a_pass_at_most(run: Any, engine: FakeEngine) -> None:
    """A chunk of several passes would keep it waiting for all of them, for nothing."""
    run("-p", "Hello", "-b", "2048", "-ub", "4", "-n", "1")
    assert [len(tokens) for tokens, _ in engine.ctx.calls] == [4, 2]


# What the engine is told


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (("-t", "--threads"), "n_threads", 3),
        (("-ub", "--ubatch-size"), "n_ubatch", 7),
        (("-b", "--batch-size"), "n_batch", 9),
        (("-c", "--ctx-size"), "n_ctx", 100),
        (("-ctk", "--cache-type-k"), "type_k", "f32"),
        (("-ctv", "--cache-type-v"), "type_v", "f32"),
    ],
)
def test_context_options_reach_the_engine(
    run: Any, engine: FakeEngine, flags: tuple[str, ...], field: str, value: object
) -> None:
    for flag in flags:
        assert run("-p", "a", flag, str(value)).code == 0
        assert getattr(engine.params[-1], field) == value


@pytest.mark.parametrize("flag", ["-m", "--model"])
def test_the_model_reaches_the_engine(run: Any, engine: FakeEngine, flag: str) -> None:
    run("-p", "a", flag, "some.gguf")
    assert engine.models[-1] == "some.gguf"


# Sampling


def texts(run: Any, *args: str, n: int = 1) -> list[str]:
    return [run("-p", "x", "-n", "200", "--json", *args).json["text"] for _ in range(n)]


FLAT = ("--temp", "4", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--ignore-eos")
"""Nearly everything may be drawn."""


@pytest.mark.parametrize("flag", ["-s", "--seed"])
def test_a_seed_repeats_itself(run: Any, engine: FakeEngine, flag: str) -> None:
    first, again = texts(run, flag, "5", *FLAT, n=2)
    assert first == again
    assert [first] != texts(run, flag, "6", *FLAT)


def test_no_seed_is_random(run: Any, engine: FakeEngine) -> None:
    assert len(set(texts(run, *FLAT, n=2))) == 2
    assert len(set(texts(run, *FLAT, "-s", "-1", n=2))) == 2


@pytest.mark.parametrize(
    "args", [("--temp", "0"), ("--temperature", "-1"), ("--top-k", "1"), ("--top-p", "0"), ("--min-p", "1")]
)
def test_each_sampling_option_narrows(run: Any, engine: FakeEngine, args: tuple[str, ...]) -> None:
    wide = ["--temp", "4", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-s", "1"]
    assert texts(run, *wide) != [" world"]
    assert texts(run, *wide, *args) == [" world"]


def test_top_k_2_draws_from_two(run: Any, engine: FakeEngine) -> None:
    (text,) = texts(run, *FLAT, "--top-k", "2", "-s", "3")
    assert set(text[:6]) <= set(" world?")
    assert "?" in text


def test_ignore_eos_goes_on(run: Any, engine: FakeEngine) -> None:
    assert run("-p", "x", "-n", "20", "--json", *GREEDY).json["ids"][-1] == EOS
    result = run("-p", "x", "-n", "20", "--json", "--ignore-eos", *GREEDY).json
    assert (len(result["ids"]), result["stop_reason"]) == (20, "limit")
    assert EOS not in result["ids"]


# JSON


def test_json_is_one_object_and_nothing_else(run: Any, engine: FakeEngine) -> None:
    result = run("-p", "Hello", "--json", *GREEDY)
    assert result.code == 0
    assert result.out.count("\n") == 1
    assert list(result.json) == [
        "model",
        "prompt_ids",
        "ids",
        "text",
        "stop_reason",
        "stopping_word",
        "timings",
        "logprobs",
    ]
    told = result.json
    timings = told.pop("timings")
    assert told == {
        "model": "fake",
        "prompt_ids": [BOS, *b"Hello"],
        "ids": [*b" world", EOS],
        "text": " world",
        "stop_reason": "eos",
        "stopping_word": None,
        "logprobs": None,
    }
    assert (timings["prompt_n"], timings["decode_n"], timings["kernels_ms"]) == (6, 6, 250)
    assert timings["prompt_ms"] > 0


def test_json_logprobs_are_raw_and_one_per_id(run: Any, engine: FakeEngine) -> None:
    told = [
        run("-p", "Hi", "--json", "--logprobs", "2", *args).json
        for args in (GREEDY, ("--temp", "0.01", "--top-k", "3"), ("--min-p", "1"))
    ]
    assert told[0]["logprobs"] == told[1]["logprobs"] == told[2]["logprobs"]
    steps = told[0]["logprobs"]
    assert [step["id"] for step in steps] == told[0]["ids"]
    assert list(steps[0]) == ["id", "token", "bytes", "logprob", "top_logprobs"]
    assert (steps[1]["token"], steps[1]["bytes"]) == ("w", [119])
    assert steps[-1]["token"] == "<eos>"
    assert [t["token"] for t in steps[1]["top_logprobs"]] == ["w", "?"]
    assert steps[1]["top_logprobs"][0]["logprob"] == steps[1]["logprob"] < 0


def test_json_logprobs_0_gives_the_chosen_alone(run: Any, engine: FakeEngine) -> None:
    assert run("-p", "Hi", "-n", "1", "--json", "--logprobs", "0").json["logprobs"][0]["top_logprobs"] == []


def test_logprobs_without_json_go_to_stderr(run: Any, engine: FakeEngine) -> None:
    result = run("-p", "Hi", "-n", "2", "--logprobs", "2", *GREEDY)
    assert result.out == "Hi w"
    (line,) = [line for line in result.err.splitlines() if line.split()[0] == "119"]
    assert line.count("'w'") == 2
    assert "'?'" in line


# Errors


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (("-n", "-2"), "n_predict"),
        (("-c", "-1"), "n_ctx"),
        (("-b", "0"), "n_batch"),
        (("-ub", "0"), "n_ubatch"),
        (("-t", "-2"), "n_threads"),
        (("-ctk", "q9_0"), "type_k"),
        (("-ctv", "nonsense"), "type_v"),
        (("-s", "-2"), "seed"),
        (("--temp", "nan"), "temp"),
        (("--top-k", "-2"), "top_k"),
        (("--top-p", "1.1"), "top_p"),
        (("--min-p", "-0.1"), "min_p"),
        (("--logprobs", "-1"), "logprobs"),
        (("-n", "many"), "-n"),
        (("--top-p", "much"), "--top-p"),
        (("--nonsense",), "--nonsense"),
        (("stray",), "stray"),
    ],
)
def test_bad_values_are_named_and_exit_1(run: Any, engine: FakeEngine, args: tuple[str, ...], name: str) -> None:
    result = run("-p", "a", *args)
    assert (result.code, result.out) == (1, "")
    assert name in result.err
    assert "Traceback" not in result.err
    assert engine.contexts == []
