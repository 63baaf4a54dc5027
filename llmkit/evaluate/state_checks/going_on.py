"""A greedy continuation with all its logits, and how two of them differ."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context

Logits = npt.NDArray[np.float32]


class DifferenceError(Exception):
    """Something is not what it should be; the message says what."""


@dataclass
class Continuation:
    """The ids that were chosen one after the other, and the logits that each was chosen from."""

    ids: list[int] = field(default_factory=list)
    logits: list[Logits] = field(default_factory=list)

    def add(self, row: Logits) -> None:
        """Takes note of the next token's logits, float32 [n_vocab]."""
        self.logits.append(row.copy())
        self.ids.append(int(row.argmax()))

    def from_step(self, first: int) -> Continuation:
        """What came from the first-th token on."""
        return Continuation(self.ids[first:], self.logits[first:])


def go_on(ctx: Context, seq: object, tokens: list[int], n: int) -> Continuation:
    """Decodes `tokens` behind what `seq` holds, then n - 1 more, each the best of the logits before it."""
    found = Continuation()
    found.add(ctx.decode([Segment(seq, tokens, "last")])[0])
    while len(found.ids) < n:
        found.add(ctx.decode([Segment(seq, found.ids[-1:], "last")])[0])
    return found


def go_on_together(
    ctx: Context, seqs: list[object], tokens: list[list[int]], n: int, n_steps_of_others: int = 0
) -> list[Continuation]:
    """The same for several sequences in one batch a step; after n_steps_of_others only the first goes on, if not 0."""
    found = [Continuation() for _ in seqs]
    step = 0
    while len(found[0].ids) < n:
        live = len(seqs) if not n_steps_of_others or step < n_steps_of_others else 1
        batch = [Segment(seqs[i], found[i].ids[-1:] if step else tokens[i], "last") for i in range(live)]
        for i, row in enumerate(ctx.decode(batch)):
            found[i].add(row)
        step += 1
    return found


def same(found: Continuation, wanted: Continuation) -> str:
    """What two equal continuations have in common, in words; DifferenceError where a bit differs."""
    if len(found.ids) != len(wanted.ids):
        raise DifferenceError(f"{len(found.ids)} tokens instead of {len(wanted.ids)}")
    for i, (ours, theirs) in enumerate(zip(found.logits, wanted.logits, strict=True)):
        if not np.array_equal(ours.view(np.uint32), theirs.view(np.uint32)):
            raise DifferenceError(f"the logits of token {i} differ, NMSE {nmse(ours, theirs):.1e}")
    return f"{len(found.ids)} tokens, equal bits"


def nmse(found: Logits, wanted: Logits) -> float:
    """Mean squared difference to the mean square of what is wanted."""
    wanted64 = wanted.astype(np.float64)
    return float(((found - wanted64) ** 2).sum() / max((wanted64**2).sum(), 1e-300))
