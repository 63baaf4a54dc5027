"""How fast a context generates: tokens one after another, without choosing them.

Owns the measurement only.
"""

import time
from typing import TYPE_CHECKING

from llmkit.engine.batch import Segment

if TYPE_CHECKING:
    from llmkit.engine.context import Context

N_DECODED = 32


def decode_speed(ctx: "Context", tokens: list[int], n: int = N_DECODED) -> float:
    """Tokens per second of n single tokens after as many that are there already; `tokens` holds at least 2 n + 1."""
    assert len(tokens) > 2 * n, len(tokens)
    seq = ctx.new_sequence()
    try:
        ctx.decode([Segment(seq, tokens[: n + 1], "last")])
        began = time.perf_counter()
        for token in tokens[n + 1 : 2 * n + 1]:
            ctx.decode([Segment(seq, [token], "last")])
        return n / (time.perf_counter() - began)
    finally:
        ctx.free_sequence(seq)
