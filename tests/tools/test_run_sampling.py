"""The options of sampling and stopping of `llmkit run`: the visible effect of each, with scripted logits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmkit.cli import main
from llmkit.tools._sampling_options import _FIELDS, _PARSED
from tests.make_models import make_model
from tests.tools.fake_engine import EOS, N_VOCAB, FakeEngine
from tests.tools.in_process import run_llmkit

GREEDY = ("--temp", "0")
OFF = ("--top-k", "0", "--top-p", "1", "--min-p", "0", "--temp", "1")


def probs(**letters: float) -> Any:
    """The same distribution over letters at every step."""
    row = np.full(N_VOCAB, -30.0, dtype=np.float32)
    for letter, p in letters.items():
        row[EOS if letter == "eos" else ord(letter)] = np.log(p)
    return lambda tokens: row


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], engine: FakeEngine) -> Any:
    def call(*args: str, prompt: str = "p") -> Any:
        capsys.readouterr()
        code = main(["run", "-p", prompt, "--no-display-prompt", "-q", *args])
        out, err = capsys.readouterr()
        return out if code == 0 else (code, err)

    return call


def letters(run: Any, *args: str, n: int = 200) -> set[str]:
    """Which letters are generated, of many."""
    return set(run("-s", "1", "-n", str(n), *args))


def test_every_option_is_tried_here() -> None:
    """All names stand in this file."""
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    for kind in (*_FIELDS.values(), *_PARSED.values()):
        for name in kind.__metadata__[0].param_decls:
            assert f'"{name}"' in text, name


def test_cuts(run: Any, engine: FakeEngine) -> None:
    engine.script = probs(a=0.4, b=0.3, c=0.2, d=0.1)
    assert letters(run, *OFF) == set("abcd")
    assert letters(run, *OFF, "--top-k", "2") == set("ab")
    assert letters(run, *OFF, "--top-p", "0.8") == set("abc")
    assert letters(run, *OFF, "--min-p", "0.6") == set("ab")
    for flag in ("--top-nsigma", "--top-n-sigma"):
        assert letters(run, *OFF, flag, "1") == set("abcd")  # 3.6: most of the 258 logits are far lower
        assert letters(run, *OFF, flag, "0.1") == set("ab")
    for flag in ("--typical", "--typical-p"):
        assert letters(run, *OFF, flag, "0.1") == set("b")
    assert letters(run, *OFF, "--top-p", "0.1", "--min-keep", "3") == set("abc")


def test_xtc(run: Any, engine: FakeEngine) -> None:
    engine.script = probs(a=0.4, b=0.3, c=0.2, d=0.1)
    always = ("--xtc-probability", "1")
    assert letters(run, *OFF, *always) == set("cd")  # d is a little less probable than 0.1
    assert letters(run, *OFF, *always, "--xtc-threshold", "0.25") == set("bcd")
    assert letters(run, *OFF, *always, "--xtc-threshold", "0.6") == set("abcd")
    assert letters(run, *OFF, "--xtc-probability", "0") == set("abcd")
    often = run("-s", "1", "-n", "400", *OFF, "--xtc-probability", "0.5", "--xtc-threshold", "0.25").count("a")
    assert 40 < often < 120


@pytest.mark.parametrize("flag", ["--temp", "--temperature"])
def test_temperature(run: Any, engine: FakeEngine, flag: str) -> None:
    engine.script = probs(a=0.6, b=0.4)
    assert letters(run, *OFF, flag, "0") == letters(run, *OFF, flag, "-1") == letters(run, flag, "1e-9") == {"a"}
    assert letters(run, *OFF, flag, "1") == {"a", "b"}


def test_dynamic_temperature(run: Any, engine: FakeEngine) -> None:
    """A distribution that is almost sure gets the low end of the range: then it is sure."""
    engine.script = probs(a=0.98, b=0.02)
    assert letters(run, *OFF) == {"a", "b"}
    assert letters(run, *OFF, "--dynatemp-range", "1") == {"a"}
    assert letters(run, *OFF, "--dynatemp-range", "1", "--dynatemp-exp", "0") >= {"a", "b"}


def test_penalties(run: Any, engine: FakeEngine) -> None:
    engine.script = probs(a=0.5, b=0.3, c=0.2)
    assert run("-n", "3", *GREEDY) == "aaa"
    assert run("-n", "3", *GREEDY, "--presence-penalty", "2") == "abc"
    assert run("-n", "3", *GREEDY, "--frequency-penalty", "0.2") == "aaa"
    assert run("-n", "7", *GREEDY, "--frequency-penalty", "0.3") == "aababac"
    assert run("-n", "3", *GREEDY, "--presence-penalty", "2", prompt="a") == "bca"
    assert run("-n", "4", *GREEDY, "--presence-penalty", "2", "--repeat-last-n", "1") == "abab"
    assert run("-n", "4", *GREEDY, "--presence-penalty", "2", "--repeat-last-n", "0") == "aaaa"
    assert run("-n", "3", *GREEDY, "--repeat-penalty", "9") == "abc"


def test_dry(run: Any, engine: FakeEngine) -> None:
    """The letter after the last one in the alphabet is best: an endless repetition of three."""
    row = np.full((N_VOCAB, N_VOCAB), -30.0, dtype=np.float32)
    for this, after in zip("abcp", "bcaa", strict=True):
        row[ord(this), [ord(after), ord(".")]] = [3.0, 1.0]
    row[ord("."), ord("a")] = 3.0
    engine.script = lambda tokens: row[tokens[-1]]
    assert run("-n", "8", *GREEDY) == "abcabcab"
    dry = (*GREEDY, "--dry-multiplier", "1", "-n", "8")
    assert run(*dry) == "abcabca."  # after abca comes b for the second time, at 1.75 ** 2
    assert run(*dry, "--dry-base", "5") == "abcabc.a"
    assert run(*dry, "--dry-allowed-length", "3") == "abcabcab"
    assert run(*dry, "--dry-penalty-last-n", "3") == "abcabcab"
    assert run(*dry, "--dry-penalty-last-n", "0") == "abcabcab"
    assert run(*dry, "--dry-sequence-breaker", "a") == "abcabcab"
    assert run(*dry, "--dry-sequence-breaker", "a", "--dry-sequence-breaker", "none") == "abcabcab"
    assert run(*dry, "--dry-sequence-breaker", "none") == "abcabca."


def test_adaptive_p(run: Any, engine: FakeEngine) -> None:
    engine.script = probs(a=0.7, b=0.2, c=0.1)
    steps = (*OFF, "--top-k", "3", "--samplers", "top_k;adaptive_p")
    assert run("-s", "1", "-n", "300", *steps, "--adaptive-target", "0.2").count("b") > 150
    assert 160 < run("-s", "1", "-n", "300", *steps, "--adaptive-target", "-1").count("a") < 260
    by_decay = {d: run("-s", "1", "-n", "300", *steps, "--adaptive-target", "0.5", "--adaptive-decay", d) for d in "0"}
    assert by_decay["0"] != run("-s", "1", "-n", "300", *steps, "--adaptive-target", "0.5")
    code, err = run(*OFF, "--adaptive-target", "0.2")
    assert (code, "adaptive_p is not among the samplers" in err) == (1, True)


def test_mirostat(run: Any, engine: FakeEngine) -> None:
    row = np.full(N_VOCAB, -30.0, dtype=np.float32)
    row[97:123] = np.log(1 / np.arange(1, 27))
    engine.script = lambda tokens: row
    for version in ("1", "2"):
        low = ("--mirostat", version, "--mirostat-ent", "1", "--temp", "1", "-s", "1", "-n", "200")
        assert set(run(*low)[50:]) < set("abcdefgh")
        assert len(set(run(*low, "--mirostat-ent", "4"))) > 12
        assert run(*low, "--mirostat-lr", "0") != run(*low)
        assert run(*low, "--top-k", "1") == run(*low)
    assert run("--mirostat", "3")[0] == 1


@pytest.mark.parametrize("flag", ["-l", "--logit-bias"])
def test_logit_bias(run: Any, engine: FakeEngine, flag: str) -> None:
    engine.script = probs(a=0.5, b=0.3, c=0.2)
    assert run("-n", "1", *GREEDY, flag, "98+1") == "b"
    assert run("-n", "1", *GREEDY, flag, "97-1") == "b"
    assert run("-n", "1", *GREEDY, flag, "97-inf", flag, "98-inf") == "c"
    assert run("-n", "1", *GREEDY, flag, "98+0.3", flag, "98+0.3") == "b"
    assert letters(run, *OFF, flag, "97-inf") == set("bc")
    code, err = run(flag, "258+1")
    assert (code, "token 258" in err) == (1, True)
    assert run(flag, "x")[0] == 1


def test_ignore_eos(run: Any, engine: FakeEngine) -> None:
    engine.script = probs(eos=0.9, a=0.1)
    assert run("-n", "3", *GREEDY) == ""
    assert run("-n", "3", *GREEDY, "--ignore-eos") == "aaa"


def test_the_steps_and_their_order(run: Any, engine: FakeEngine) -> None:
    engine.script = probs(a=0.4, b=0.3, c=0.2, d=0.1)
    cut = ("--top-k", "2", "--top-p", "0.5", "--min-p", "0", "--temp", "1")
    assert letters(run, *cut) == {"a"}  # of a and b, a has 4/7
    assert letters(run, *cut, "--samplers", "top_p;top_k") == {"a", "b"}
    assert letters(run, *cut, "--samplers", "top_k;temperature") == {"a", "b"}
    assert letters(run, *cut, "--samplers", "") == set("abcd")
    for flag in ("--sampler-seq", "--sampling-seq"):
        assert letters(run, *cut, flag, "pk") == {"a", "b"}
    code, err = run("--samplers", "top_k", "--sampler-seq", "k")
    assert (code, "twice" in err) == (1, True)
    assert run("--samplers", "no_such")[0] == run("--sampler-seq", "q")[0] == 1


@pytest.mark.parametrize("flag", ["-s", "--seed"])
def test_seeds(run: Any, engine: FakeEngine, flag: str) -> None:
    engine.script = probs(a=0.5, b=0.5)
    texts = [run("-n", "60", *OFF, flag, seed) for seed in ("1", "1", "2", "-1", "-1")]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 4


def test_stop(run: Any, engine: FakeEngine) -> None:
    engine.answer = b"one two, three"
    assert run(*GREEDY, "--stop", "two") == "one "
    assert run(*GREEDY, "--stop", "three", "--stop", " t") == "one"
    assert run(*GREEDY, "--stop", "four", "--stop", "threex") == "one two, three"
    assert run(*GREEDY, "--stop", "p") == "one two, three"  # only in the prompt
    found = json.loads(run(*GREEDY, "--stop", "two", "--json"))
    assert (found["text"], found["stop_reason"], found["stopping_word"]) == ("one ", "word", "two")
    assert bytes(found["ids"]) == b"one two"


@pytest.mark.parametrize("flag", ["-r", "--reverse-prompt"])
def test_a_reverse_prompt_is_shown(run: Any, engine: FakeEngine, flag: str) -> None:
    engine.answer = b"one two, three"
    assert run(*GREEDY, flag, "two") == "one two"
    found = json.loads(run(*GREEDY, flag, "two", "--json", "--stop", "three"))
    assert (found["text"], found["stop_reason"], found["stopping_word"]) == ("one two", "word", "two")


def test_escapes_in_stop_texts(run: Any, engine: FakeEngine) -> None:
    """Case 25, and a text that begins in the middle of a character."""
    engine.answer = b"Really?\nYes\\n"
    assert run(*GREEDY, "--stop", "\\n") == "Really?"
    assert run(*GREEDY, "--stop", "\\n", "--no-escape") == "Really?\nYes"
    assert run(*GREEDY, "-r", "\\x3f") == "Really?"
    code, err = run(*GREEDY, "--stop", "\\xa9")
    assert (code, "not UTF-8" in err) == (1, True)
    for flag in ("--stop", "-r"):
        code, err = run(*GREEDY, flag, "")
        assert (code, "empty" in err) == (1, True)


def test_a_control_token_as_a_stop_text(run: Any, engine: FakeEngine) -> None:
    """It has no text that could be found, so its id is."""
    assert engine.tokenizer is not None
    encode = engine.tokenizer.encode
    engine.tokenizer.encode = lambda text, *a, **k: [256] if text == "<bos>" else encode(text, *a, **k)  # type: ignore[method-assign]
    engine.script = lambda tokens: np.eye(N_VOCAB, dtype=np.float32)[256 if tokens[-1] == 97 else 97]
    assert run(*GREEDY, "--stop", "<bos>", "-n", "9") == "a"
    assert json.loads(run(*GREEDY, "--stop", "<bos>", "--json"))["stopping_word"] == "<bos>"


def test_the_stream_is_the_text_whatever_ends_it(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte tokens of é, of a broken character, and of a stop text with é: what streams equals what --json tells."""
    engine = FakeEngine("né — s".encode() + b"\xff\xe2\x82" + "top é!".encode()).install(monkeypatch)
    for args in ((), ("--stop", "é!"), ("--stop", "top é?"), ("-r", "\\xc3\\xa9"), ("-n", "2"), ("-n", "12")):
        streamed = run(*GREEDY, *args)
        assert streamed == json.loads(run(*GREEDY, *args, "--json"))["text"]
    assert run(*GREEDY, "--stop", "é!") == "né — s\ufffd\ufffdtop "
    del engine


def test_verbose_tells_the_steps_and_what_stopped(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        ["run", "-p", "Hello", "-v", "--stop", "wor", "--repeat-penalty", "1.1", "--xtc-probability", "0.1", "-s", "5"]
    )
    err = capsys.readouterr().err
    steps = "penalties 1.1 0 0 -> top-k 40 -> top-p 0.95 -> min-p 0.05 -> xtc 0.1 0.1 -> temp 0.8 -> dist, seed 5"
    assert steps in err
    assert "stop: word 'wor'" in err


def test_tokens_that_the_file_suppresses_are_never_generated(tmp_path: Path) -> None:
    """The best token is left out, also where it is what --logit-bias asks for."""
    plain = make_model(tmp_path / "plain.gguf", tokenizer="bpe")
    args = ("-p", "Hello", "-n", "6", "--temp", "0", "-c", "128", "-t", "2", "-q", "--json")
    ids = json.loads(run_llmkit("run", "-m", str(plain), *args).stdout)["ids"]
    keys = {"tokenizer.ggml.suppress_tokens": np.array(sorted(set(ids)), dtype=np.int32)}
    suppressed = make_model(tmp_path / "suppressed.gguf", tokenizer="bpe", metadata=keys)
    for more in ((), ("-l", f"{ids[0]}+50")):
        others = json.loads(run_llmkit("run", "-m", str(suppressed), *args, *more).stdout)["ids"]
        assert len(others) > 0
        assert not set(others) & set(ids)
