"""Grammars made to crash, hang or eat memory: each is refused with a reason, or bounded where it is used."""

import pytest

from llmkit.errors import GrammarError
from llmkit.files.gguf_reader import open_gguf
from llmkit.sampling import grammar as grammar_module
from llmkit.sampling.gbnf import parse_gbnf
from llmkit.sampling.gbnf_check import check_rules
from llmkit.sampling.grammar import GrammarCompiler, guarded
from llmkit.tokenizer import Tokenizer, load_tokenizer
from tests.make_models import make_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    with open_gguf(make_model(tmp_path_factory.mktemp("hostile") / "m.gguf", tokenizer="bpe", n_layer=1)) as gguf:
        return load_tokenizer(gguf)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


def rules(n: int, last: str) -> str:
    """A chain of n rules, each of which needs the next."""
    return "\n".join(["root ::= r0", *(f'r{i} ::= "(" r{i + 1} ")"' for i in range(n)), f"r{n} ::= {last}"])


REFUSED = {
    "10 MB": ('root ::= "' + "a" * 10_000_000 + '"', "1048576 are allowed"),
    "deep groups": ("root ::= " + "(" * 100_000, "nested more than 100 deep"),
    "many rules": (rules(4_000, '"x"'), "3000 are allowed"),
    "many parts": ("root ::= root2 | " + "[a-b] " * 30_000 + '\nroot2 ::= "(" root2 ")" | "x"', "too large"),
    "left recursion through many": (
        "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(30_000)), 'r30000 ::= r0 "x" | "y"']),
        "left-recursive",
    ),
    "no end through many": (rules(30_000, "root"), "never ends"),
    "undefined at the end of many": (rules(30_000, "nosuch"), "no rule named nosuch"),
    "a million repetitions": ('root ::= "a"{1000000}', "more than 2000 times"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_time(name: str, compiler: GrammarCompiler) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(GrammarError) as caught:
        compiler.from_gbnf(text)
    assert reason in caught.value.message


@pytest.mark.parametrize("last", ['"x"', '"(" root? ")"'])
def test_a_chain_of_rules_does_not_overflow_the_stack(last: str, compiler: GrammarCompiler) -> None:
    """As one terminal, and as rules: 3,000 of them end the process where the thread has a usual stack."""
    grammar = compiler.from_gbnf(rules(2900, last))
    assert not grammar.complete
    assert grammar.mask().any()


def test_what_doubles_with_each_rule(compiler: GrammarCompiler) -> None:
    text = "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)), 'r60 ::= "x"'])
    grammar = compiler.from_gbnf(text)
    assert grammar.mask().any()


def test_a_grammar_that_is_too_complex_where_it_is_used(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(grammar_module._LIMITS, "step_max_items", 50)
    grammar = compiler.from_gbnf('root ::= "(" root ")" | ' + " ".join(["[a-z]*"] * 9) + ' "!"')
    for _ in range(2):
        grammar.start_mask()
        with pytest.raises(GrammarError, match="Too many items"):
            grammar.mask()


def test_a_panic_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """What pyo3 raises for one."""

    def panic() -> None:
        raise PanicException("assertion failed")

    with pytest.raises(GrammarError, match="assertion failed"):
        guarded(panic)
    with pytest.raises(KeyboardInterrupt):
        guarded(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_the_checks_take_time_in_proportion() -> None:
    """12,000 rules that each can be empty once the next one can: rounds over all of them would take minutes."""
    n = 12_000
    text = "\n".join(["root ::= " + " ".join(f"r{i}" for i in range(n)), *(f"r{i} ::= r{i + 1}?" for i in range(n))])
    check_rules(parse_gbnf(text + f'\nr{n} ::= "x"?'))


def test_it_is_set_up_once_and_only_when_it_is_used(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    make = grammar_module._llguidance_tokenizer
    monkeypatch.setattr(grammar_module, "_llguidance_tokenizer", lambda *args: calls.append(args) or make(*args))
    compiler = GrammarCompiler(tokenizer)
    assert calls == []
    with pytest.raises(GrammarError):
        compiler.from_gbnf("x")
    assert calls == []
    for _ in range(2):
        compiler.from_gbnf('root ::= "a"')
    assert len(calls) == 1
