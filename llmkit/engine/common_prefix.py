"""How much two texts, as token ids or characters, have in common at their beginning. Knows nothing of what follows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def n_common(a: Sequence[object], b: Sequence[object]) -> int:
    """How many of the first items are the same."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the most frequent answer, at C's speed; a list and a tuple are never equal
        return n
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), n)


def n_common_ids(a: NDArray[Any], b: NDArray[Any]) -> int:
    """The same of two arrays of whole numbers, [n] each."""
    n = min(a.size, b.size)
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if differ.size else n
