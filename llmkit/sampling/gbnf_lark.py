"""Grammar rules in the notation of llguidance, which is a kind of Lark's.

Owns what is written as a regular expression (a terminal there, an upper-case name) and what as a rule. llguidance's
terminals take the longest text they can, and never less. GBNF knows no such thing, so a terminal of several characters
is right only where nothing can follow that it might have taken: here that is a grammar which is regular as a whole.
Elsewhere each character is a terminal of its own.
"""

import json
from collections.abc import Callable

from llmkit.errors import GrammarError
from llmkit.sampling.gbnf import Alt, Chars, Node, Ref, Repeat, Seq, TokenSet

HEAD = '%llguidance {"no_forcing": true}\n'
"""Without it llguidance looks for text that is forced, which never ends where no end is possible; and it only allows
the tokens that its own tokenizer would choose for such a text."""

TokenText = Callable[[TokenSet], str]


MAX_RULES = 3000
MAX_PARTS = 10_000
"""What can be compiled within seconds; a literal or class of a terminal, or a character of a rule, is a part."""


def to_lark(rules: dict[str, Node], token_text: TokenText, *, as_terminals: bool) -> str:
    """The grammar for llguidance; GrammarError if it is too large.

    token_text: how it writes a set of tokens. as_terminals: all rules are parts of one terminal, for a regular grammar.
    """
    if len(rules) > MAX_RULES:
        raise GrammarError(f"the grammar has {len(rules)} rules; {MAX_RULES} are allowed")
    n_parts = sum(_n_parts(node, as_terminals) for node in rules.values())
    if n_parts > MAX_PARTS:
        raise GrammarError(f"the grammar is too large: it has {n_parts} parts, and {MAX_PARTS} are allowed")
    rules = {name: _without_tail(name, node) for name, node in rules.items()}
    numbers = {name: f"{'R' if as_terminals else 'r'}{i}" for i, name in enumerate(rules)}
    lines = [HEAD, f"start: {numbers['root']}"]
    for name, node in rules.items():
        lines.append(f"{numbers[name]}: {_text(node, numbers, token_text)}")
    return "\n".join(lines) + "\n"


def is_regular(rules: dict[str, Node]) -> bool:
    """Whether the rules describe characters only, and none of them comes back to itself."""
    remaining: dict[str, int] = {}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, node in rules.items():
        refs = set[str]()
        if not _only_characters(node, refs):
            return False
        remaining[name] = len(refs)
        for ref in refs:
            users[ref].append(name)
    ready = [name for name, n in remaining.items() if n == 0]
    n_done = 0
    while ready:
        n_done += 1
        for user in users[ready.pop()]:
            remaining[user] -= 1
            if remaining[user] == 0:
                ready.append(user)
    return n_done == len(rules)


def _only_characters(node: Node, refs: set[str]) -> bool:
    if isinstance(node, Ref):
        refs.add(node.name)
    inner = node.items if isinstance(node, Seq) else node.choices if isinstance(node, Alt) else ()
    if isinstance(node, Repeat):
        inner = (node.item,)
    return not isinstance(node, TokenSet) and all(_only_characters(item, refs) for item in inner)


def _n_parts(node: Node, as_terminals: bool) -> int:
    """Terminals of many classes take far longer than those of many literals."""
    if isinstance(node, Seq):
        if as_terminals and _literal(node) is not None:
            return 1
        return sum(_n_parts(item, as_terminals) for item in node.items)
    if isinstance(node, Alt):
        return sum(_n_parts(choice, as_terminals) for choice in node.choices)
    if isinstance(node, Repeat):
        return 1 + _n_parts(node.item, as_terminals)
    return 8 if as_terminals and isinstance(node, Chars) and node.ranges[0][0] != node.ranges[-1][1] else 1


def _without_tail(name: str, node: Node) -> Node:
    """x ::= a x | b as x ::= a* b: the parser's work for a rule that ends with itself grows with each character."""
    choices = node.choices if isinstance(node, Alt) else (node,)
    again = [c for c in choices if isinstance(c, Seq) and c.items and _is(c.items[-1], name)]
    rest = [c for c in choices if c not in again]
    if not again or not rest:
        return node
    repeated = Alt(tuple(Seq(c.items[:-1]) for c in again if isinstance(c, Seq)))
    return Seq((Repeat(repeated, 0, None), Alt(tuple(rest))))


def _is(node: Node, name: str) -> bool:
    return isinstance(node, Ref) and node.name == name


def _text(node: Node, numbers: dict[str, str], token_text: TokenText) -> str:
    if isinstance(node, Chars):
        return characters(node)
    if isinstance(node, TokenSet):
        return token_text(node)
    if isinstance(node, Ref):
        return numbers[node.name]
    if isinstance(node, Seq):
        if (literal := _literal(node)) is not None and numbers["root"].isupper():
            return literal
        return "(" + " ".join(_text(item, numbers, token_text) for item in node.items) + ")" if node.items else '""'
    if isinstance(node, Alt):
        return "(" + " | ".join(_text(choice, numbers, token_text) for choice in node.choices) + ")"
    high = "" if node.high is None else str(node.high)
    if node.high == 0:
        return '""'
    return f"({_text(node.item, numbers, token_text)}){{{node.low},{high}}}"


def _literal(node: Seq) -> str | None:
    """A sequence of certain characters as one string, which is read faster."""
    codes = [c.ranges[0][0] for c in node.items if isinstance(c, Chars) and c.ranges[0][0] == c.ranges[-1][1]]
    return json.dumps("".join(map(chr, codes))) if codes and len(codes) == len(node.items) else None


def characters(node: Chars) -> str:
    """One character, as a regular expression."""
    ranges = "".join(
        f"\\x{{{low:X}}}" if low == high else f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in node.ranges
    )
    return f"/[{ranges}]/"
