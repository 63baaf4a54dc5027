"""`llmkit run --state --save-state --prompt-cache` and `llmkit state save|load`: what goes on from a file is what would
have come without it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmkit.engine.context import Context
from llmkit.engine.state.save_load import read_state_info
from llmkit.errors import OutputError
from tests.make_models import make_model
from tests.tools.in_process import Finished, run_llmkit

TEXT = "the cat sat on the mat and the dog sat on the cat and all of them were glad of it in the end of the day"
MORE = " and then"
GREEDY = ("--temp", "0", "-q")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("states") / "m.gguf", tokenizer="bpe", n_ctx_train=512))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("states") / "w.gguf"
    return str(make_model(path, arch="gemma3", window=16, tokenizer="bpe", n_ctx_train=512))


def run(model: str, *args: str, stdin: bytes | None = None) -> dict[str, Any]:
    done = run_llmkit("run", "-m", model, *GREEDY, "--json", *args, stdin=stdin)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def failed(*args: str) -> Finished:
    done = run_llmkit(*args)
    assert done.returncode == 1
    return done


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each call of decode computed."""
    counts: list[int] = []
    decode = Context.decode

    def spy(self: Context, segments: Any) -> Any:
        counts.append(sum(len(segment.tokens) for segment in segments))
        return decode(self, segments)

    monkeypatch.setattr(Context, "decode", spy)
    monkeypatch.setattr(Context, "warm_up", lambda self: 0.0)
    return counts


# -- --state and --save-state -------------------------------------------------------------------------------------


def test_a_text_goes_on_as_if_it_had_not_stopped(model: str, tmp_path: Path, decoded: list[int]) -> None:
    whole = run(model, "-p", TEXT, "-n", "12", "--ignore-eos")
    state = str(tmp_path / "s")
    first = run(model, "-p", TEXT, "-n", "5", "--ignore-eos", "--save-state", state)
    assert first["ids"] == whole["ids"][:5]
    decoded.clear()
    rest = run(model, "--state", state, "-n", "7", "--ignore-eos")
    assert first["ids"] + rest["ids"] == whole["ids"]
    assert decoded == [1] * 7  # the state's last token, for its logits, and six of the new ones
    assert rest["prompt_ids"] == [*whole["prompt_ids"], *first["ids"]]
    assert rest["timings"]["cache_n"] == len(rest["prompt_ids"]) - 1


def test_a_text_comes_behind_a_state(model: str, tmp_path: Path) -> None:
    state = str(tmp_path / "s")
    saved = run_llmkit("state", "save", "-m", model, "-p", TEXT, state, "--json")
    ids = json.loads(saved.stdout)["sequences"][0]["tokens"]
    behind = run(model, "--state", state, "-p", MORE, "-n", "6", "--logprobs", "3")
    more = run_llmkit("tokenize", "-m", model, "-p", MORE, "--ids", "--no-bos")
    assert behind["prompt_ids"] == ids + json.loads(more.stdout)
    alone = run(model, "--ids", ",".join(map(str, behind["prompt_ids"])), "-n", "6", "--logprobs", "3")
    assert behind["ids"] == alone["ids"]
    assert behind["logprobs"] == alone["logprobs"]
    piped = run(model, "--state", state, "-n", "6", stdin=MORE.encode())
    assert piped["ids"] == alone["ids"]


def test_state_load_is_run_with_a_state(model: str, tmp_path: Path) -> None:
    state = str(tmp_path / "s")
    run_llmkit("state", "save", "-m", model, "-p", TEXT, state, "-q")
    ours = run_llmkit("state", "load", state, "-m", model, "-p", MORE, "-n", "6", *GREEDY)
    theirs = run_llmkit("run", "--state", state, "-m", model, "-p", MORE, "-n", "6", *GREEDY)
    assert (ours.returncode, ours.stdout) == (0, theirs.stdout)
    assert run_llmkit("state-load", state, "-m", model, "-p", MORE, "-n", "6", *GREEDY).stdout == theirs.stdout


def test_penalties_see_what_was_before(model: str, tmp_path: Path) -> None:
    state, options = str(tmp_path / "s"), ("-n", "8", "--repeat-penalty", "3", "--repeat-last-n", "400")
    run_llmkit("state", "save", "-m", model, "-p", TEXT, state, "-q")
    behind = run(model, "--state", state, "-p", MORE, *options)
    alone = run(model, "--ids", ",".join(map(str, behind["prompt_ids"])), *options)
    without = run(model, "--ids", ",".join(map(str, behind["prompt_ids"])), "-n", "8")
    assert behind["ids"] == alone["ids"] != without["ids"]


def test_several_continuations_share_a_state(model: str, tmp_path: Path) -> None:
    state, options = str(tmp_path / "s"), ("-m", model, "-n", "5", "-np", "3", "-s", "7", "--json", "-q")
    run_llmkit("state", "save", "-m", model, "-p", TEXT, state, "-q")
    behind = json.loads(run_llmkit("run", "--state", state, "-p", MORE, *options).stdout)
    ids = run(model, "--state", state, "-p", MORE, "-n", "0")["prompt_ids"]
    alone = json.loads(run_llmkit("run", "--ids", ",".join(map(str, ids)), *options).stdout)
    assert [s["ids"] for s in behind["sequences"]] == [s["ids"] for s in alone["sequences"]]


def test_a_window_is_saved_too(windowed: str, tmp_path: Path) -> None:
    state = str(tmp_path / "s")
    whole = run(windowed, "-p", TEXT, "-n", "8", "--ignore-eos")
    run(windowed, "-p", TEXT, "-n", "3", "--ignore-eos", "--save-state", state)
    assert run(windowed, "--state", state, "-n", "5", "--ignore-eos")["ids"] == whole["ids"][3:]


def test_compressed(model: str, tmp_path: Path) -> None:
    plain, small = str(tmp_path / "p"), str(tmp_path / "c")
    run(model, "-p", TEXT, "-n", "2", "--save-state", plain)
    run(model, "-p", TEXT, "-n", "2", "--save-state", small, "--compress")
    assert os.path.getsize(small) < os.path.getsize(plain)
    assert run(model, "--state", small, "-n", "4")["ids"] == run(model, "--state", plain, "-n", "4")["ids"]
    told = run_llmkit("run", "-m", model, "--state", small, "-n", "1", "-v")
    assert "unpacked, which copies it" in told.stderr


def test_one_of_several_sequences(model: str, tmp_path: Path) -> None:
    from llmkit.engine.batch import Segment
    from llmkit.engine.state.save_load import save_state
    from llmkit.models.model import load_model
    from llmkit.params import ContextParams

    state = str(tmp_path / "s")
    with Context(load_model(model), ContextParams(n_ctx=64, n_seq_max=2)) as ctx:
        for i in range(2):
            ctx.decode([Segment(ctx.memory.sequence(i), [5 + i, 9, 10 + i], "none")])
        save_state(ctx, state, {3: ctx.memory.sequence(0), 8: ctx.memory.sequence(1)})
    assert run(model, "--state", state, "--state-seq", "8", "-n", "1")["prompt_ids"] == [6, 9, 11]
    assert "there are 3, 8" in failed("run", "-m", model, "--state", state, "-n", "1").stderr
    assert "holds no sequence 4" in failed("run", "-m", model, "--state", state, "--state-seq", "4").stderr


def test_a_conversation_begins_with_a_state(model: str, tmp_path: Path) -> None:
    options = ("-m", model, "-cnv", "-st", "-sys", TEXT, "--chat-template", "chatml", "-n", "4", *GREEDY)
    state = str(tmp_path / "s")
    first = run_llmkit("run", *options, "-p", "Hello", "--save-state", state, "--json")
    again = run_llmkit("run", *options, "-p", "Hello", "--state", state, "--json")
    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    before, after = json.loads(first.stdout), json.loads(again.stdout)
    assert after["ids"] == before["ids"]
    assert before["timings"]["cache_n"] == 0
    assert after["timings"]["cache_n"] == len(after["prompt_ids"]) - 1
    assert "--prompt-cache-all or" in failed("run", *options, "-p", "x", "--prompt-cache", state).stderr


def test_a_conversations_state_has_its_last_answer_whole(model: str, tmp_path: Path) -> None:
    """Also of a turn behind the first, whose prompt was there in part."""
    state = str(tmp_path / "s")
    options = ("-m", model, "-cnv", "--chat-template", "chatml", "-n", "4", "--ignore-eos", "--json", *GREEDY)
    done = run_llmkit("run", *options, "--save-state", state, stdin=b"Hello\nAnd then?\n")
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["timings"]["cache_n"] > 0
    (saved,) = json.loads(run_llmkit("state", "info", state, "--json").stdout)["sequences"]
    assert saved["tokens"] == last["prompt_ids"] + last["ids"]


def test_lines_come_behind_a_state(model: str, windowed: str, tmp_path: Path, decoded: list[int]) -> None:
    for path in (model, windowed):
        state = str(tmp_path / "s")
        run_llmkit("state", "save", "-m", path, "-p", TEXT, state, "-q")
        options = ("run", "-m", path, "--batch-lines", "-np", "2", "-n", "4", "--json", *GREEDY)
        decoded.clear()
        done = run_llmkit(*options, "--state", state, "-p", " and {} then", stdin=b'"one"\n"two"\n"three"\n')
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert sum(decoded) < 60  # of the lines' own tokens: the state has more than twenty
        for line, answer in zip(("one", "two", "three"), answers, strict=True):
            alone = run(path, "--state", state, "-p", f" and {line} then", "-n", "4")
            assert answer["ids"] == alone["ids"]
            assert answer["cached_n"] == alone["timings"]["cache_n"]
    assert (
        "--batch-lines does not go with --save-state"
        in failed("run", "-m", model, "--batch-lines", "--save-state", "x").stderr
    )


def test_a_prompt_that_is_interrupted_is_no_state(
    model: str, tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes on from it would lack the prompt's end; a cache is compared with the next prompt."""
    monkeypatch.setattr("llmkit.tools._interrupt.Interruption.__call__", lambda self: len(decoded) > 1)
    state, cache = tmp_path / "s", tmp_path / "c"
    options = ("--save-state", str(state), "--prompt-cache", str(cache), "--prompt-cache-all")
    done = run_llmkit("run", "-m", model, "-p", TEXT, "-n", "3", "-ub", "8", *options)
    assert (done.returncode, state.exists(), decoded) == (130, False, [8, 8])
    assert "interrupted within the prompt" in done.stderr
    assert read_state_info(cache).n_tokens == {0: 16}


def test_an_error_is_not_hidden_by_an_empty_state(model: str, tmp_path: Path) -> None:
    options = ("--chat-template", "chatml", "--save-state", str(tmp_path / "s"))
    done = failed("run", "-m", model, "-cnv", "-st", "-p", TEXT, "-c", "8", *options)
    assert "but the context holds 8" in done.stderr
    assert not (tmp_path / "s").exists()


def test_a_state_that_fills_the_context(model: str, tmp_path: Path) -> None:
    """Nothing but the text itself takes cells: not the token by which kernels are warmed up."""
    state, lines = str(tmp_path / "s"), ("--batch-lines", "-np", "1")
    run_llmkit("state", "save", "-m", model, "--ids", ",".join(map(str, range(5, 36))), state, "-q")
    assert run(model, "--state", state, "-c", "32", "-n", "-1", "--ignore-eos")["stop_reason"] == "context"
    assert run(model, "--state", state, "-c", "32", "-n", "1", "--ids", "7")["stop_reason"] == "limit"
    assert run_llmkit("run", "-m", model, "--state", state, "-c", "96", *lines, "-n", "1", stdin=b"a\n").returncode == 0


def test_settings_say_how_states_are_kept(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold for the commands that keep one, and are no mistake in others; what is typed hides them."""
    cache = tmp_path / "c"
    for name in ("COMPRESS", "PROMPT_CACHE_ALL", "STATE_SEQ"):
        monkeypatch.setenv(f"LLMKIT_{name}", "1")
    run(model, "-p", TEXT, "-n", "1")
    run(model, "-p", TEXT, "-n", "1", "--save-state", str(tmp_path / "s"))
    assert json.loads(run_llmkit("state", "info", str(tmp_path / "s"), "--json").stdout)["compressed"]
    monkeypatch.setenv("LLMKIT_STATE", "/no/such")
    run(model, "-p", TEXT, "-n", "1", "--prompt-cache", str(cache), "--prompt-cache-ro")
    assert not cache.exists()


# -- --prompt-cache -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["model", "windowed"])
def test_prompt_cache(kind: str, tmp_path: Path, decoded: list[int], request: pytest.FixtureRequest) -> None:
    """The same prompt, a longer one, a shorter one, another ending, another text."""
    path = request.getfixturevalue(kind)
    cache = str(tmp_path / "c")
    prompts = [TEXT, TEXT, TEXT + MORE, TEXT[:40], TEXT[:40] + " other", "no such thing"]
    for i, prompt in enumerate(prompts):
        decoded.clear()
        found = run(path, "-p", prompt, "-n", "4", "--prompt-cache", cache)
        n_computed = decoded[0]
        alone = run(path, "-p", prompt, "-n", "4")
        assert (found["ids"], found["prompt_ids"]) == (alone["ids"], alone["prompt_ids"])
        cached = found["timings"]["cache_n"]
        assert n_computed == len(found["prompt_ids"]) - cached
        if i == 1:
            assert n_computed == 1 or kind == "windowed"
        if i == 2:
            assert cached >= 20


def test_prompt_cache_all_and_ro(model: str, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    first = run(model, "-p", TEXT, "-n", "4", "--ignore-eos", "--prompt-cache", str(cache), "--prompt-cache-all")
    answered = TEXT + first["text"]
    before = cache.read_bytes()
    second = run(model, "-p", answered, "-n", "2", "--prompt-cache", str(cache), "--prompt-cache-ro")
    assert second["timings"]["cache_n"] > len(first["prompt_ids"])
    assert cache.read_bytes() == before
    done = run_llmkit(
        "run", "-m", model, "-p", TEXT, "-n", "1", "--prompt-cache", str(tmp_path / "no"), "--prompt-cache-ro"
    )
    assert "is not there yet" in done.stderr
    assert not (tmp_path / "no").exists()


def test_the_prompt_alone_is_saved(model: str, tmp_path: Path) -> None:
    cache = str(tmp_path / "c")
    for n in ("5", "0"):
        found = run(model, "-p", TEXT, "-n", n, "--prompt-cache", cache)
        info = json.loads(run_llmkit("state", "info", cache, "--json").stdout)
        assert info["sequences"][0]["tokens"] == found["prompt_ids"]
        os.remove(cache)


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--state", "a", "--prompt-cache", "b"], "two states to go on from"),
        (["--prompt-cache", "a", "--prompt-cache-all", "--prompt-cache-ro"], "exclude each other"),
        (["--prompt-cache-ro"], "--prompt-cache-ro says how --prompt-cache is used"),
        (["--compress"], "--compress says how --save-state is used"),
        (["--state-seq", "1"], "--state-seq says how --state is used"),
        (["--save-state", "a", "-np", "2"], "a state holds one answer"),
        (["--state", "/no/such"], "/no/such"),
        (["--state", "/etc"], "is a directory, no state file"),
    ],
)
def test_refusals(model: str, options: list[str], message: str) -> None:
    assert message in failed("run", "-m", model, "-p", "x", "-n", "1", *options).stderr


def test_what_cannot_be_written_is_said_first(model: str, tmp_path: Path, decoded: list[int]) -> None:
    for options in (
        ["run", "--save-state", str(tmp_path)],
        ["run", "--prompt-cache", "/no/such/x"],
        ["state", "save", str(tmp_path)],
    ):
        done = failed(*options, "-m", model, "-p", TEXT)
        assert "cannot be written" in done.stderr or "cannot be replaced" in done.stderr
        assert (decoded, done.stdout) == ([], "")


def test_a_full_disk_keeps_nobody_from_the_answer(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **options: Any) -> None:
        raise OutputError("no space", "")

    monkeypatch.setattr("llmkit.engine.state.save_load.save_state", full)
    options = ("run", "-m", model, "-p", TEXT, "-n", "5", "--ignore-eos", *GREEDY)
    done = failed(*options, "--prompt-cache", str(tmp_path / "c"))
    assert done.stdout == run_llmkit(*options).stdout
    assert "no space" in done.stderr


def test_a_damaged_cache_is_an_error_and_stays(model: str, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    run(model, "-p", TEXT, "-n", "1", "--prompt-cache", str(cache))
    data = bytearray(cache.read_bytes())
    data[-1000] ^= 1
    cache.write_bytes(data)
    done = failed("run", "-m", model, "-p", TEXT, "-n", "1", "--prompt-cache", str(cache))
    assert "checksum" in done.stderr
    assert cache.read_bytes() == data


def test_another_models_state_is_refused(model: str, windowed: str, tmp_path: Path) -> None:
    state = str(tmp_path / "s")
    run_llmkit("state", "save", "-m", model, "-p", TEXT, state, "-q")
    assert "another model" in failed("run", "-m", windowed, "--state", state, "-n", "1").stderr


# -- state save, as a process -------------------------------------------------------------------------------------


def test_saving_has_its_options(model: str, tmp_path: Path) -> None:
    state = str(tmp_path / "s")
    done = run_llmkit(
        "state", "save", "-m", model, "-p", TEXT, state, "--meta", "a=b=c", "--meta", "d=", "--logits", "-ctk", "f32",
        "--compress", "-c", "96",
    )  # fmt: skip
    assert done.returncode == 0
    assert f"in {state}" in done.stderr
    assert "copies it instead of mapping" in done.stderr
    info = json.loads(run_llmkit("state", "info", state, "--json").stdout)
    assert info["metadata"] == {"a": "b=c", "d": ""}
    assert (info["type_k"], info["type_v"], info["n_ctx"], info["compressed"]) == ("f32", "f16", 96, True)
    assert "no KEY=VALUE" in failed("state", "save", "-m", model, "-p", "x", state, "--meta", "a").stderr
    assert "holds 8" in failed("state", "save", "-m", model, "-p", TEXT, str(tmp_path / "t"), "-c", "8").stderr
    assert not (tmp_path / "t").exists()


def test_unwritable_and_two_words(model: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llmkit", "state", "save", "-m", model, "-p", "x", "/no/such/folder/s"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "/no/such/folder" in done.stderr
    assert "Traceback" not in done.stderr
