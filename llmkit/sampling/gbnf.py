"""llama.cpp's grammar notation, GBNF: from text to rules.

Owns the syntax and its errors. What rules mean together is gbnf_check.py's. Follows llama.cpp's parser
(llama-grammar.cpp, build 11434) and its limit on repetitions.
"""

import re
from dataclasses import dataclass

from llmkit.errors import GrammarError

MAX_CHARS = 1 << 20
"""A longer text is refused: reading it would take seconds."""

MAX_DEPTH = 100
"""Groups within groups."""

MAX_REPETITIONS = 2000
"""llama.cpp's bound on the numbers in x{m,n}."""

MAX_CODEPOINT = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Chars:
    """One character out of ranges of code points, both ends included, ascending and apart."""

    ranges: Ranges


@dataclass(frozen=True)
class TokenSet:
    """One token: the one that is named by its id or its text, or with `negated` any other that does not end a text."""

    name: int | str
    negated: bool
    line: int


@dataclass(frozen=True)
class Ref:
    """The rule of this name."""

    name: str
    line: int


@dataclass(frozen=True)
class Seq:
    """One after another; the empty one is the empty text."""

    items: tuple["Node", ...]


@dataclass(frozen=True)
class Alt:
    """One of several."""

    choices: tuple["Node", ...]


@dataclass(frozen=True)
class Repeat:
    """At least `low` times, at most `high`; None: any number."""

    item: "Node"
    low: int
    high: int | None


Node = Chars | TokenSet | Ref | Seq | Alt | Repeat

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANKS_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_REPEAT = re.compile(r"\{[ \t\r\n]*([0-9]{1,20})[ \t\r\n]*(,[ \t\r\n]*([0-9]{1,20})?[ \t\r\n]*)?\}")
_TOKEN = re.compile(r"(!?)<(?:\[([0-9]{1,10})\]>|([^>\r\n]*)>)")
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse_gbnf(text: str) -> dict[str, Node]:
    """The rules by name, in their order; GrammarError with the line of what cannot be read."""
    if len(text) > MAX_CHARS:
        raise GrammarError(f"the grammar has {len(text)} characters; {MAX_CHARS} are allowed")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise GrammarError("the grammar holds half a surrogate pair, which is no character")
    return _Parser(text).rules()


def any_but(ranges: Ranges) -> Ranges:
    """All other code points."""
    found, start = [], 0
    for low, high in ranges:
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    return (*found, (start, MAX_CODEPOINT)) if start <= MAX_CODEPOINT else tuple(found)


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    """The same code points, ascending and apart."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


class _Parser:
    """Recursive descent; `_at` is the next character."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._counted = 0, 1  # a place, and its line

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._skip(lines=True)
        while self._at < len(self._text):
            line = self._line()
            name = self._name()
            self._skip(lines=False)
            if not self._text.startswith("::=", self._at):
                raise self._error("::= is expected here")
            self._at += 3
            self._skip(lines=True)
            if name in found:
                raise GrammarError(f"line {line}: the rule {_shown(name)} is there twice")
            found[name] = self._alternatives(0)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error("this cannot be read")
            self._skip(lines=True)
        return found

    def _alternatives(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._error(f"groups are nested more than {MAX_DEPTH} deep")
        choices = [self._sequence(depth)]
        while self._text.startswith("|", self._at):
            self._at += 1
            self._skip(lines=True)
            choices.append(self._sequence(depth))
        return choices[0] if len(choices) == 1 else Alt(tuple(choices))

    def _sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while (item := self._item(depth)) is not None:
            self._skip(lines=depth > 0)
            while (bounds := self._quantifier()) is not None:
                item = Repeat(item, *bounds)
                self._skip(lines=depth > 0)
            items.append(item)
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _item(self, depth: int) -> Node | None:
        """The next item, without what repeats it; None at the end of a sequence."""
        c = self._text[self._at : self._at + 1]
        if c == '"':
            return self._literal()
        if c == "[":
            return self._class()
        if c == ".":
            self._at += 1
            return Chars(((0, MAX_CODEPOINT),))
        if c == "(":
            return self._group(depth)
        if c and c in "<!":
            return self._token()
        if _NAME.match(self._text, self._at):
            line = self._line()
            return Ref(self._name(), line)
        if c and c in "*+?{":
            raise self._error(f"there is nothing before {c} that it could repeat")
        return None

    def _group(self, depth: int) -> Node:
        line = self._line()
        self._at += 1
        self._skip(lines=True)
        node = self._alternatives(depth + 1)
        if not self._text.startswith(")", self._at):
            raise self._error(f"the ( of line {line} is not closed")
        self._at += 1
        return node

    def _quantifier(self) -> tuple[int, int | None] | None:
        c = self._text[self._at : self._at + 1]
        if c in _QUANTIFIERS:
            self._at += 1
            return _QUANTIFIERS[c]
        if c != "{":
            return None
        match = _REPEAT.match(self._text, self._at)
        if match is None:
            raise self._error("{m}, {m,} or {m,n} is expected here")
        low = int(match[1])
        high = low if match[2] is None else int(match[3]) if match[3] is not None else None
        if max(low, high or 0) > MAX_REPETITIONS:
            raise self._error(f"{match[0]} repeats more than {MAX_REPETITIONS} times")
        if high is not None and high < low:
            raise self._error(f"{match[0]} has its larger number first")
        self._at = match.end()
        return low, high

    def _literal(self) -> Node:
        line = self._line()
        self._at += 1
        items: list[Node] = []
        while not self._text.startswith('"', self._at):
            if self._at >= len(self._text):
                raise GrammarError(f'line {line}: the closing " is missing')
            code = self._character()
            items.append(Chars(((code, code),)))
        self._at += 1
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _class(self) -> Node:
        line = self._line()
        negated = self._text.startswith("[^", self._at)
        self._at += 2 if negated else 1
        ranges: list[tuple[int, int]] = []
        while not self._text.startswith("]", self._at):
            if self._at >= len(self._text):
                raise GrammarError(f"line {line}: the closing ] is missing")
            low = high = self._character()
            if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._character()
            if high < low:
                raise self._error("a range of characters ends before it begins")
            ranges.append((low, high))
        self._at += 1
        found = any_but(merged(ranges)) if negated else merged(ranges)
        if not found:
            raise GrammarError(f"line {line}: no character is in this class")
        return Chars(found)

    def _character(self) -> int:
        """The next character of a literal or class, as a code point."""
        c = self._text[self._at : self._at + 1]
        if not c:
            raise self._error("the text ends too early")
        self._at += 1
        if c != "\\":
            return ord(c)
        kind = self._text[self._at : self._at + 1]
        self._at += 1
        if kind in _ESCAPES:
            return ord(_ESCAPES[kind])
        n = _HEX_DIGITS.get(kind, 0)
        digits = self._text[self._at : self._at + n]
        if not re.fullmatch(rf"[0-9a-fA-F]{{{n}}}", digits) or not n:
            raise self._error(f"\\{kind} is no escape that llama.cpp knows, or its digits are missing")
        self._at += n
        code = int(digits, 16)
        if code > MAX_CODEPOINT or 0xD800 <= code <= 0xDFFF:
            raise self._error(f"\\{kind}{digits} is no character")
        return code

    def _token(self) -> Node:
        line = self._line()
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._error("a token is written <text> or <[id]>, with ! in front for all others")
        self._at = match.end()
        name = int(match[2]) if match[2] is not None else f"<{match[3]}>"
        return TokenSet(name, bool(match[1]), line)

    def _name(self) -> str:
        match = _NAME.match(self._text, self._at)
        if match is None:
            raise self._error("a name is expected here")
        self._at = match.end()
        return match[0]

    def _skip(self, *, lines: bool) -> None:
        match = (_BLANKS_AND_LINES if lines else _BLANKS).match(self._text, self._at)
        assert match is not None, "the pattern matches the empty text"
        self._at = match.end()

    def _line(self) -> int:
        place, line = self._counted
        line += self._text.count("\n", place, self._at)
        self._counted = self._at, line
        return line

    def _error(self, message: str) -> GrammarError:
        near = self._text[self._at : self._at + 20].split("\n")[0]
        return GrammarError(f"line {self._line()}: {message}" + (f", at {near!r}" if near else ""))


def _shown(name: str) -> str:
    return name if len(name) <= 40 else name[:40] + "..."
