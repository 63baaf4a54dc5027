"""How much two texts, as token ids or characters, have in common at their beginning. Knows nothing of what follows."""

from collections.abc import Sequence


def n_common(a: Sequence[object], b: Sequence[object]) -> int:
    """How many of the first items are the same."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the most frequent answer, at C's speed; a list and a tuple are never equal
        return n
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), n)
