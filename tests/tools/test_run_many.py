"""`llmkit run -np N`: the texts in order, as they would be alone; JSON; the streams; Ctrl-C."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from llmkit.tools._batched import SequencesView
from llmkit.tools._interrupt import Interruption
from tests.make_models import make_model
from tests.tools.in_process import Finished, run_llmkit

HOT = ("--temp", "2", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-c", "128", "-t", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("many") / "m.gguf", tokenizer="bpe"))


def llmkit(model: str, *args: str) -> Finished:
    return run_llmkit("run", "-m", model, "-p", "Hello there", "-n", "12", *HOT, *args)


def test_each_text_is_what_its_seed_gives_alone(model: str) -> None:
    done = llmkit(model, "-np", "3", "-s", "5", "-q")
    texts = [llmkit(model, "-s", str(seed), "-q").stdout for seed in (5, 6, 7)]
    assert len(set(texts)) == 3
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(f"sequence {i}:\n\n{text}\n\n" for i, text in enumerate(texts))


def test_without_the_prompt(model: str) -> None:
    done = llmkit(model, "-np", "2", "-s", "5", "-q", "--no-display-prompt")
    first = llmkit(model, "-s", "5", "-q", "--no-display-prompt").stdout
    assert done.stdout.startswith(f"sequence 0:\n\n{first}\n\nsequence 1:\n\n")


def test_json(model: str) -> None:
    done = llmkit(model, "-np", "3", "-s", "5", "--json", "-q", "--logprobs", "2")
    value: dict[str, Any] = json.loads(done.stdout)
    assert list(value) == ["model", "prompt_ids", "sequences", "timings"]
    assert [s["seed"] for s in value["sequences"]] == [5, 6, 7]
    for sequence in value["sequences"]:
        alone = json.loads(llmkit(model, "-s", str(sequence["seed"]), "--json", "-q", "--logprobs", "2").stdout)
        assert {key: alone[key] for key in sequence if key != "seed"} == {
            key: sequence[key] for key in sequence if key != "seed"
        }
    assert value["timings"]["decode_n"] == sum(len(s["ids"]) - 1 for s in value["sequences"])


def test_a_random_seed_is_chosen_once(model: str) -> None:
    value = json.loads(llmkit(model, "-np", "3", "--json", "-q").stdout)
    seeds = [s["seed"] for s in value["sequences"]]
    assert seeds[1:] == [(seeds[0] + i) % 0xFFFFFFFF for i in (1, 2)]


def test_stop_strings_hold_for_each_alone(model: str) -> None:
    value = json.loads(llmkit(model, "-np", "4", "-s", "5", "--json", "-q").stdout)
    letter = next(c for c in value["sequences"][0]["text"] if c.isalnum())
    stopped = json.loads(llmkit(model, "-np", "4", "-s", "5", "--json", "-q", "--stop", letter).stdout)
    for before, after in zip(value["sequences"], stopped["sequences"], strict=True):
        assert after["text"] == before["text"].split(letter)[0]
        assert after["stop_reason"] == ("word" if letter in before["text"] else before["stop_reason"])


def test_messages(model: str) -> None:
    err = llmkit(model, "-np", "2", "-s", "5", "-v", "--logprobs", "1").stderr
    assert "generating 2 sequences ..." in err
    assert "sequence 0: seed 5, stop: limit" in err
    assert "sequence 1: seed 6, stop: limit" in err
    assert err.count("sequence 1:\n") == 1


def test_ids_for_a_model_without_texts(tmp_path: Path) -> None:
    path = str(make_model(tmp_path / "m.gguf"))
    args = ("run", "-m", path, "--ids", "1,2,3", "-n", "4", "-q", *HOT)
    alone = [run_llmkit(*args, "-s", str(seed)).stdout.strip() for seed in (5, 6)]
    done = run_llmkit(*args, "-np", "2", "-s", "5")
    assert done.stdout == f"sequence 0:\n\n{alone[0]}\n\nsequence 1:\n\n{alone[1]}\n\n"


@pytest.mark.parametrize("n", ["0", "-1"])
def test_how_many_is_checked(model: str, n: str) -> None:
    done = llmkit(model, "-np", n)
    assert done.returncode == 1
    assert "n_seq_max" in done.stderr


def test_ctrl_c_shows_what_there_is(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def call(self: Interruption) -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    monkeypatch.setattr(Interruption, "__call__", call)
    done = llmkit(model, "-np", "2", "-s", "5", "--json", "-q")
    assert done.returncode == 130
    assert [s["stop_reason"] for s in json.loads(done.stdout)["sequences"]] == ["interrupted"] * 2


def test_a_text_streams_when_it_is_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    """The first that is not complete shows each token; what came of those behind it follows at once."""

    class Part:
        stop_reason: str | None = None
        tail = ""

    class Token:
        def __init__(self, text: str) -> None:
            self.text = text

    parts = [Part(), Part(), Part()]
    view = SequencesView(parts, "P")  # type: ignore[arg-type]

    def shown(which: int, text: str) -> str:
        view.add(which, Token(text))  # type: ignore[arg-type]
        return capsys.readouterr().out

    assert capsys.readouterr().out == "sequence 0:\n\nP"
    assert shown(0, "a") == "a"
    assert shown(1, "x") == ""
    parts[1].stop_reason, parts[1].tail = "eos", "!"
    assert shown(1, "y") == ""
    assert shown(2, "k") == ""
    parts[0].stop_reason = "eos"
    assert shown(0, "b") == "b\n\nsequence 1:\n\nPxy!\n\nsequence 2:\n\nPk"
    assert shown(2, "l") == "l"
    view.end()
    assert capsys.readouterr().out == "\n\n"


def test_each_text_has_a_state_of_its_own_in_a_grammar(model: str) -> None:
    grammar = ("--grammar", 'root ::= " " [a-e]{2,3} ("." | "!")')
    value = json.loads(llmkit(model, "-np", "4", "-s", "5", "--json", "-q", *grammar).stdout)
    for sequence in value["sequences"]:
        alone = json.loads(llmkit(model, "-s", str(sequence["seed"]), "--json", "-q", *grammar).stdout)
        assert re.fullmatch(" [a-e]{2,3}[.!]", sequence["text"])
        assert (sequence["ids"], sequence["stop_reason"]) == (alone["ids"], "eos")
    cut = json.loads(llmkit(model, "-n", "2", "--json", "-q", "--grammar", 'root ::= [^!]{9} "!"').stdout)
    assert (cut["stop_reason"], len(cut["ids"])) == ("limit", 2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--grammar", "root ::= x"), "--grammar: line 1: there is no rule named x"),
        (("-j", "{"), "-j: the JSON schema is no JSON"),
        (("-j", "{}", "--grammar", "x"), "two grammars, from --grammar and from -j"),
        (("-jf", "/nonexistent"), "/nonexistent given by -jf cannot be read"),
        (("--grammar-file", "/"), "given by --grammar-file cannot be read"),
    ],
)
def test_a_wrong_grammar_is_refused_by_its_option(model: str, args: tuple[str, ...], message: str) -> None:
    done = llmkit(model, *args)
    assert (done.returncode, done.stdout.replace("Hello there", "")) == (1, "")
    assert message in done.stderr


def test_a_schema_from_a_file(model: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "integer", "minimum": 10, "maximum": 99}')
    value = json.loads(llmkit(model, "--json", "-q", "-jf", str(tmp_path / "s.json")).stdout)
    assert 10 <= json.loads(value["text"]) <= 99
    (tmp_path / "g.gbnf").write_text('root ::= "ab"')
    value = json.loads(llmkit(model, "--json", "-q", "--grammar-file", str(tmp_path / "g.gbnf"), "-np", "2").stdout)
    assert [sequence["text"] for sequence in value["sequences"]] == ["ab", "ab"]


def test_a_grammar_holds_in_a_conversation(model: str) -> None:
    done = run_llmkit(
        "run", "-m", model, "-cnv", "-st", "-p", "Hi", "-n", "8", *HOT, "-c", "256", "-q", "--grammar", 'root ::= "ab"'
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ab")
