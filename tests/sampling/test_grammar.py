"""Grammars: which tokens may come next, against an obvious twin; what is refused, and why."""

import random

import numpy as np
import pytest

from llmkit.errors import GrammarError
from llmkit.files.gguf_reader import open_gguf
from llmkit.sampling.gbnf import parse_gbnf
from llmkit.sampling.grammar import Grammar, GrammarCompiler
from llmkit.tokenizer import Tokenizer, load_tokenizer
from tests.make_models import make_model
from tests.reference.grammar import Walker


@pytest.fixture(scope="module", params=["bpe", "spm"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = make_model(tmp_path_factory.mktemp("grammar") / "m.gguf", tokenizer=request.param, n_layer=1)
    with open_gguf(path) as gguf:
        return load_tokenizer(gguf)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


def allowed(grammar: Grammar, n_vocab: int) -> set[int]:
    bits = np.unpackbits(grammar.mask().view(np.uint8), bitorder="little")
    assert not bits[n_vocab:].any()
    return set(np.flatnonzero(bits[:n_vocab]).tolist())


def expected(walker: Walker, tokenizer: Tokenizer) -> set[int]:
    """Tokens whose bytes fit, and where the text may end those that end it."""
    pieces = {id: tokenizer.piece_bytes(id) for id in range(tokenizer.n_vocab)}
    found = {id for id, piece in pieces.items() if piece and walker.after(piece) is not None}
    return found | (set(tokenizer.eog_ids) if walker.complete else set())


def check_walk(text: str, tokenizer: Tokenizer, compiler: GrammarCompiler, n_steps: int, seed: int) -> None:
    """Compares the whole mask at each step of a random text of the grammar."""
    chance, walker, grammar = random.Random(seed), Walker(parse_gbnf(text)), compiler.from_gbnf(text)
    for step in range(n_steps):
        grammar.start_mask()
        may = allowed(grammar, tokenizer.n_vocab)
        assert may == expected(walker, tokenizer), text
        assert grammar.complete == walker.complete, text
        going = sorted(may - tokenizer.eog_ids)
        assert step == 0 or grammar.finished == (not going), text
        if not going:
            break
        token = chance.choice(going)
        grammar.accept(token)
        following = walker.after(tokenizer.piece_bytes(token))
        assert following is not None
        walker = following


GRAMMARS = {
    "json": r"""
        root   ::= object
        value  ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
        array  ::= "[" ws (value ("," ws value)*)? "]" ws
        string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
        number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
        ws     ::= | " " | "\n" [ \t]{0,20}
    """,
    "list": 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"',
    "arithmetic": """
        root ::= (expr "=" ws num "\\n")+
        expr ::= term ([-+*/] term)*
        term ::= ident | num | "(" ws expr ")" ws
        ident ::= [a-z] [a-z0-9_]* ws
        num ::= [0-9]+ ws
        ws ::= [ \\t\\n]*
    """,
    "chess": """
        # moves in pairs
        root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+
        move ::= (pawn | piece | castle) [+#]?
        piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
        pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
        castle ::= "O-O" "-O"?
    """,
    "two characters that each may end a word": 'root ::= w " the" | "(" root ")"\nw ::= [a-z ]+',
    "longest match is not always right": 'root ::= x "ab" | "[" root "]"\nx ::= "a"*',
    "words that begin each other": 'root ::= ("in" | "ing" | "i") ("g" | "ng")? root?',
    "beyond ASCII": 'root ::= ("é" | "ü" [à-ý]+ | ".") root? "\\u00e9"',
    "anything": "root ::= .*",
    "nothing": 'root ::= ""',
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_are_those_of_the_twin(name: str, tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    for seed in range(3):
        check_walk(GRAMMARS[name], tokenizer, compiler, 8, seed)


def random_node(chance: random.Random, depth: int) -> str:
    """A text for some node; rules r0 to r2 may be named behind a character only, so that nothing is left-recursive."""
    kind = chance.randrange(3 if depth == 0 else 9)
    if kind <= 1:
        return '"' + "".join(chance.choice("abhe é") for _ in range(chance.randint(1, 3))) + '"'
    if kind == 2:
        return chance.choice(["[ab]", "[^ab]", "[a-é]", "[h-t]", "."])
    inner = [random_node(chance, depth - 1) for _ in range(chance.randint(1, 3))]
    if kind <= 4:
        return "(" + " ".join(inner) + ")"
    if kind == 5:
        return "(" + " | ".join(inner) + ")"
    if kind == 6:
        return f'("{chance.choice("ab(")}" r{chance.randrange(3)})' + chance.choice(["", "?", "*"])
    return inner[0] + chance.choice(["?", "*", "+", "{0,2}", "{2}", "{1,}"])


def test_masks_of_random_grammars_are_those_of_the_twin(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    n_used = 0
    for seed in range(60):
        chance = random.Random(seed)
        rules = [f'r{i} ::= {random_node(chance, 2)} | "{chance.choice("ab")}"' for i in range(3)]
        text = "\n".join([f"root ::= {random_node(chance, 3)} {random_node(chance, 1)}", *rules])
        check_walk(text, tokenizer, compiler, 4, seed)
        n_used += "r" in text.split("\n")[0][4:]
    assert n_used > 10, "recursive ones are among them"


REFUSED = [
    ("", "no rule named root"),
    ("# only a comment", "no rule named root"),
    ('start ::= "a"', "no rule named root"),
    ("root ::= x", "line 1: there is no rule named x"),
    ('root := "a"', "line 1: ::= is expected"),
    ('root ::= "a', 'closing " is missing'),
    ("root ::= [a", "closing ] is missing"),
    ('root ::= ("a"', "( of line 1 is not closed"),
    ('root ::= "a")', "cannot be read"),
    ("root ::= *", "nothing before"),
    ('root ::= "a"{3,2}', "larger number first"),
    ('root ::= "a"{1000000}', "more than 2000 times"),
    ('root ::= "a"{99999999999999999999999}', "{m,n} is expected"),
    ('root ::= "\\q"', "no escape"),
    ('root ::= "\\xg0"', "no escape"),
    ('root ::= "\\U00110000"', "no character"),
    ("root ::= [z-a]", "ends before it begins"),
    ("root ::= [^\\x00-\\U0010FFFF]", "no character is in this class"),
    ('root ::= root "a" | "b"', "left-recursive"),
    ('root ::= x\nx ::= y? x "a"\ny ::= "b"', "left-recursive"),
    ('root ::= "a" root', "never ends"),
    ('root ::= "a" | "b" x\nx ::= "c" x', "never ends"),
    ('root ::= "a"\nroot ::= "b"', "twice"),
    ("root ::= <nosuch>", "<nosuch> is no token"),
    ("root ::= <[999999]>", "there is no token 999999"),
    ("root ::= <[x", "a token is written"),
    ("root ::= !x", "a token is written"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_is_no_grammar_is_refused(text: str, reason: str, compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.from_gbnf(text)
    assert reason in caught.value.message


def test_a_token_that_does_not_fit_is_an_error(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    grammar = compiler.from_gbnf('root ::= "a"')
    with pytest.raises(GrammarError, match="doesn't satisfy"):
        grammar.accept(tokenizer.encode("b", add_special=False)[-1])


def test_a_clone_goes_its_own_way(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    first = compiler.from_gbnf('root ::= "ab" | "ac"')
    a, b = (next(id for id in range(tokenizer.n_vocab) if tokenizer.piece_bytes(id) == c) for c in (b"a", b"b"))
    first.start_mask()
    second = first.clone()
    assert allowed(first, tokenizer.n_vocab) == allowed(second, tokenizer.n_vocab)
    first.accept(a)
    first.start_mask()
    third = first.clone()
    third.accept(b)
    assert third.finished
    assert not first.finished
    assert a in allowed(second, tokenizer.n_vocab)
    assert b in allowed(first, tokenizer.n_vocab)


class Pieces:
    """A vocabulary of these tokens, the last of which ends a text; the one before it is a control token."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = [*pieces, b"", b""]
        self.n_vocab = len(self.pieces)
        self.eog_ids = frozenset({self.n_vocab - 1})

    def piece_bytes(self, id: int, special: bool = False) -> bytes:
        return self.pieces[id] if id < self.n_vocab else b""

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        if text == "<control>" and parse_special:
            return [self.n_vocab - 2]
        return [self.pieces.index(bytes([byte])) for byte in text.encode()]

    def named(self, found: set[int]) -> set[bytes | str]:
        names: dict[int, bytes | str] = {self.n_vocab - 2: "control", self.n_vocab - 1: "end"}
        return {names.get(id, self.pieces[id]) for id in found}


BRACES = Pieces(
    b"{",
    b'"',
    b'{"',
    b'"}',
    b" {",
    b" ",
    b"a",
    b'a"',
    b'a"}',
    b'{"a',
    b"}",
    b"\xc3",
    b"\xa9",
    b'\xc3\xa9"',
    b"\xe2\x82",
)


def steps(grammar: Grammar, pieces: Pieces, *tokens: bytes) -> set[bytes | str]:
    """What may come after these tokens."""
    for token in tokens:
        assert token in pieces.named(allowed(grammar, pieces.n_vocab))
        grammar.accept(pieces.pieces.index(token))
    return pieces.named(allowed(grammar, pieces.n_vocab))


def test_a_token_may_span_elements_begin_with_a_space_or_be_half_a_character() -> None:
    compiler = GrammarCompiler(BRACES)
    text = 'root ::= " "? object\nobject ::= "{" string (object | "}")\nstring ::= "\\"" [aé]+ "\\""'
    assert steps(compiler.from_gbnf(text), BRACES) == {b"{", b'{"', b" {", b" ", b'{"a'}
    assert steps(compiler.from_gbnf(text), BRACES, b" ") == {b"{", b'{"', b'{"a'}
    assert steps(compiler.from_gbnf(text), BRACES, b'{"') == {b"a", b'a"', b'a"}', b"\xc3", b'\xc3\xa9"'}
    assert steps(compiler.from_gbnf(text), BRACES, b'{"', b"\xc3") == {b"\xa9"}
    assert steps(compiler.from_gbnf(text), BRACES, b'{"', b'a"') == {b"{", b'{"', b'{"a', b"}"}
    done = compiler.from_gbnf(text)
    assert steps(done, BRACES, b'{"a', b'\xc3\xa9"', b"}") == {"end"}
    assert done.finished


def test_a_character_of_which_no_token_completes_the_beginning_is_not_begun() -> None:
    """llguidance looks at bytes: E2 82 can still become a character, so it may come, whatever tokens there are."""
    assert steps(GrammarCompiler(BRACES).from_gbnf("root ::= [€é]"), BRACES) == {b"\xc3", b"\xe2\x82"}


def test_tokens_by_name_and_all_others() -> None:
    compiler = GrammarCompiler(BRACES)
    everything = {*BRACES.pieces[:-2], "control"}
    assert steps(compiler.from_gbnf('root ::= <control> "a"'), BRACES) == {"control"}
    assert steps(compiler.from_gbnf("root ::= <[3]>"), BRACES) == {b'"}'}
    assert steps(compiler.from_gbnf('root ::= !<[3]> "a"'), BRACES) == everything - {b'"}'}
    assert steps(compiler.from_gbnf('root ::= !<control> "a"'), BRACES) == everything - {"control"}
    assert steps(compiler.from_gbnf("root ::= .*"), BRACES) >= {b"a", b"\xc3", "end"}
    assert "control" not in steps(compiler.from_gbnf("root ::= .*"), BRACES), "a control token has no text"
    assert steps(compiler.from_gbnf('root ::= "a"**'), BRACES, b"a") == {b"a", "end"}


def test_without_a_token_that_ends_a_text(tokenizer: Tokenizer) -> None:
    class Endless(Pieces):
        def __init__(self) -> None:
            super().__init__(b"a", b"b")
            self.eog_ids = frozenset()

    pieces = Endless()
    grammar = GrammarCompiler(pieces, n_vocab=40).from_gbnf('root ::= "ab"')
    assert grammar.mask().size == 2
    for token in (0, 1):
        assert allowed(grammar, 40) == {token}
        grammar.accept(token)
    assert grammar.finished
