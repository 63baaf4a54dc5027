"""The obvious twin of a grammar's mask: all ways in which the rules may go on, kept as stacks of what is still to come.

Slow and simple. It takes the rules as parsed; whether a text is read rightly is tested by hand-written examples.
"""

from llmkit.sampling.gbnf import Alt, Chars, Node, Ref, Repeat, Seq

Stack = tuple[Node, ...]


def expand(rules: dict[str, Node], stacks: set[Stack]) -> set[Stack]:
    """All stacks that begin with a character or are empty, after every choice that can be made before one."""
    found, waiting = set[Stack](), list(stacks)
    while waiting:
        stack = waiting.pop()
        if stack in found:
            continue
        found.add(stack)
        if not stack or isinstance(stack[0], Chars):
            continue
        first, rest = stack[0], stack[1:]
        if isinstance(first, Ref):
            waiting.append((rules[first.name], *rest))
        elif isinstance(first, Seq):
            waiting.append((*first.items, *rest))
        elif isinstance(first, Alt):
            waiting.extend((choice, *rest) for choice in first.choices)
        else:
            assert isinstance(first, Repeat), "token sets are not for this twin"
            if first.low == 0:
                waiting.append(rest)
            if first.high != 0:
                high = None if first.high is None else first.high - 1
                again: Node = Repeat(first.item, max(0, first.low - 1), high)
                # An item that took no character is not repeated: it would go on for ever and changes nothing.
                waiting.append((first.item, again, *rest) if not _is_empty(rules, first.item) else rest)
    return {stack for stack in found if not stack or isinstance(stack[0], Chars)}


def _is_empty(rules: dict[str, Node], node: Node) -> bool:
    return isinstance(node, Seq) and all(_is_empty(rules, item) for item in node.items)


class Walker:
    """Where a text of bytes is in the rules."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self.rules = rules
        self.stacks = expand(rules, {(rules["root"],)})
        self.partial = b""

    @property
    def complete(self) -> bool:
        return () in self.stacks and not self.partial

    def after(self, piece: bytes) -> "Walker | None":
        """The state after more bytes; None where they do not fit."""
        new = Walker.__new__(Walker)
        new.rules, new.stacks, new.partial = self.rules, self.stacks, self.partial
        for byte in piece:
            new.partial += bytes([byte])
            if not new._settle():
                return None
        return new

    def _settle(self) -> bool:
        """Takes the partial character if it is whole; whether it fits, or can still."""
        low, high = _code_points(self.partial)
        fitting = {
            stack
            for stack in self.stacks
            if stack and isinstance(stack[0], Chars) and any(a <= high and low <= b for a, b in stack[0].ranges)
        }
        if low == high and self.partial == chr(low).encode():
            self.stacks, self.partial = expand(self.rules, {stack[1:] for stack in fitting}), b""
        return bool(fitting)


_NONE = (0x110000, -1)


def _code_points(partial: bytes) -> tuple[int, int]:
    """The first and last code point whose UTF-8 begins with these bytes; an empty range if there is none."""
    lead, n = partial[0], next((n for n, low in ((4, 0xF0), (3, 0xE0), (2, 0xC0)) if partial[0] >= low), 1)
    if lead > 0xF4 or 0x80 <= lead < 0xC0 or any(not 0x80 <= byte < 0xC0 for byte in partial[1:]):
        return _NONE
    bits = lead if n == 1 else lead & (0x7F >> n)
    for byte in partial[1:]:
        bits = bits << 6 | byte & 0x3F
    missing = 6 * (n - len(partial))
    low, high = max(bits << missing, (0, 0x80, 0x800, 0x10000)[n - 1]), min(((bits + 1) << missing) - 1, 0x10FFFF)
    if low < 0xD800 <= high <= 0xDFFF:
        high = 0xD7FF
    return _NONE if low > high or (low >= 0xD800 and high <= 0xDFFF) else (low, high)
