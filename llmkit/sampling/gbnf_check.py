"""What is wrong with grammar rules as a whole: none called root, undefined, left-recursive or endless ones.

Owns these questions. Each takes time in proportion to the grammar, however hostile. Knows nothing of tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from llmkit.errors import GrammarError
from llmkit.sampling.gbnf import Alt, Node, Ref, Repeat, Seq

_TERMINAL = -1


@dataclass
class _Productions:
    """Rules and the groups in them as numbered symbols; each has alternatives, which are lists of symbols."""

    alternatives: list[list[list[int]]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def new(self, name: str) -> int:
        """A symbol without alternatives yet."""
        self.alternatives.append([])
        self.names.append(name)
        return len(self.names) - 1

    def true_of(self, of_terminal: bool) -> list[bool]:
        """The symbols with an alternative whose symbols all have a property, given whether terminals have it."""
        found = [False] * len(self.names)
        users: list[list[tuple[int, int]]] = [[] for _ in self.names]
        missing: dict[tuple[int, int], int] = {}
        ready: list[int] = []
        for symbol, alternatives in enumerate(self.alternatives):
            for i, items in enumerate(alternatives):
                if _TERMINAL in items and not of_terminal:
                    continue
                needed = [item for item in items if item != _TERMINAL]
                missing[symbol, i] = len(needed)
                for item in needed:
                    users[item].append((symbol, i))
                if not needed:
                    ready.append(symbol)
        while ready:
            symbol = ready.pop()
            if found[symbol]:
                continue
            found[symbol] = True
            for user in users[symbol]:
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user[0])
        return found


def check_rules(rules: dict[str, Node]) -> None:
    """GrammarError unless the rules make a grammar that llama.cpp takes, and each text in them can come to an end."""
    if "root" not in rules:
        raise GrammarError(
            "the grammar has no rule named root", "The text to generate is what root describes: root ::= ..."
        )
    for node in rules.values():
        for ref in _refs(node):
            if ref.name not in rules:
                raise GrammarError(f"line {ref.line}: there is no rule named {ref.name[:40]}")
    productions = _productions(rules)
    nullable = productions.true_of(of_terminal=False)
    looping = _left_recursive(productions, nullable)
    if looping is not None:
        raise GrammarError(
            f"the rule {looping[:40]} is left-recursive: it begins with itself",
            "Write what it repeats with * or +, or put the rule's name behind something.",
        )
    for name, productive in zip(productions.names[: len(rules)], productions.true_of(of_terminal=True), strict=False):
        if not productive:
            raise GrammarError(f"the rule {name[:40]} never ends: each way through it needs itself again")


def _refs(node: Node) -> Iterator[Ref]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Ref):
            yield node
        elif isinstance(node, Seq):
            waiting.extend(node.items)
        elif isinstance(node, Alt):
            waiting.extend(node.choices)
        elif isinstance(node, Repeat):
            waiting.append(node.item)


def _productions(rules: dict[str, Node]) -> _Productions:
    productions = _Productions()
    ids = {name: productions.new(name) for name in rules}
    for name, node in rules.items():
        productions.alternatives[ids[name]] = [[_symbol(productions, ids, name, node)]]
    return productions


def _symbol(productions: _Productions, ids: dict[str, int], rule: str, node: Node) -> int:
    """The symbol of a node; groups are nested no deeper than the parser allows."""
    lower: Callable[[Node], int] = lambda inner: _symbol(productions, ids, rule, inner)  # noqa: E731
    if isinstance(node, Ref):
        return ids[node.name]
    if isinstance(node, Seq | Alt | Repeat):
        symbol = productions.new(rule)
        if isinstance(node, Seq):
            productions.alternatives[symbol] = [[lower(item) for item in node.items]]
        elif isinstance(node, Alt):
            productions.alternatives[symbol] = [[lower(choice)] for choice in node.choices]
        else:
            never: list[list[int]] = [[]] if node.low == 0 else []
            productions.alternatives[symbol] = [*never, [lower(node.item)]] if node.high != 0 else [[]]
        return symbol
    return _TERMINAL


def _left_recursive(productions: _Productions, nullable: list[bool]) -> str | None:
    """The name of a rule that can begin with itself, if there is one."""
    new, open_, done = 0, 1, 2
    state = [new] * len(productions.names)
    for start in range(len(state)):
        if state[start] != new:
            continue
        state[start] = open_
        path = [(start, _left_edges(productions, nullable, start))]
        while path:
            symbol, edges = path[-1]
            following = next(edges, None)
            if following is None:
                state[symbol] = done
                path.pop()
            elif state[following] == open_:
                return productions.names[following]
            elif state[following] == new:
                state[following] = open_
                path.append((following, _left_edges(productions, nullable, following)))
    return None


def _left_edges(productions: _Productions, nullable: list[bool], symbol: int) -> Iterator[int]:
    for items in productions.alternatives[symbol]:
        for item in items:
            if item == _TERMINAL:
                break
            yield item
            if not nullable[item]:
                break
