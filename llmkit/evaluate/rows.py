"""Logits row by row, a bounded number of them at a time.

Owns how parts of sequences are packed into passes, so that memory for logits stays flat however large vocabulary and
batch are. A pass is one ubatch: its logits are a view and nothing is copied.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.batch import Segment, Wanted

if TYPE_CHECKING:
    from llmkit.engine.context import Context

LOGITS_BYTES = 64 << 20
"""Memory that the logits of one pass may take."""

Stop = Callable[[], bool]


def never() -> bool:
    """The answer when nobody interrupts."""
    return False


@dataclass(frozen=True)
class Part:
    """New tokens of a sequence, with the logits of all or of none of them wanted."""

    seq: Any
    tokens: list[int]
    wanted: bool


def max_rows(ctx: "Context") -> int:
    """Rows of logits that a pass may have."""
    return max(16, LOGITS_BYTES // (4 * ctx.model.config.n_vocab))


def passes(parts: list[Part], n_tokens: int, n_rows: int) -> Iterator[list[Segment]]:
    """The parts in order, cut into runs of at most n_tokens tokens of which at most n_rows have wanted logits."""
    segments: list[Segment] = []
    tokens_left, rows_left = n_tokens, n_rows
    for part in parts:
        start = 0
        wanted: Wanted = "all" if part.wanted else "none"
        while start < len(part.tokens):
            room = min(tokens_left, rows_left) if part.wanted else tokens_left
            if room == 0:
                yield segments
                segments, tokens_left, rows_left = [], n_tokens, n_rows
                continue
            tokens = part.tokens[start : start + room]
            segments.append(Segment(part.seq, tokens, wanted))
            start, tokens_left = start + len(tokens), tokens_left - len(tokens)
            rows_left -= len(tokens) if part.wanted else 0
    if segments:
        yield segments


def logits_of(ctx: "Context", parts: list[Part], stop: Stop = never) -> Iterator[NDArray[np.float32]]:
    """The wanted logits in order, float32 [n, n_vocab] a pass, valid until the next one; ends early on `stop`.

    A sequence may be in one part only: a pass takes each once.
    """
    for segments in passes(parts, ctx.n_ubatch, max_rows(ctx)):
        if stop():
            return
        logits = ctx.decode(segments)
        if len(logits):
            yield logits


def window_logits(
    ctx: "Context", windows: Any, n_seq: int, stop: Stop = never
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The number of the first row, and logits of scored rows, of all windows in order; n_seq windows at once.

    windows: evaluate.windows.Windows. Row r predicts targets(r, 1).
    """
    row = 0
    for first in range(0, windows.n, n_seq):
        group = range(first, min(first + n_seq, windows.n))
        sequences = [ctx.new_sequence() for _ in group]
        pairs = list(zip(sequences, group, strict=True))
        try:
            for _ in logits_of(ctx, [Part(seq, windows.context(i), False) for seq, i in pairs], stop):
                pass
            for logits in logits_of(ctx, [Part(seq, windows.scored(i), True) for seq, i in pairs], stop):
                yield row, logits
                row += len(logits)
        finally:
            for seq in sequences:
                ctx.free_sequence(seq)
        if stop():
            return


def by_window(
    rows: Iterator[tuple[int, NDArray[np.float64]]], n_scored: int
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Collects values a row [n, k] into whole windows [n_scored, k], each with its number."""
    held: list[NDArray[np.float64]] = []
    n_held = window = 0
    for _, values in rows:
        held.append(values)
        n_held += len(values)
        if n_held < n_scored:
            continue
        joined = np.concatenate(held)
        while n_held >= n_scored:
            yield window, joined[:n_scored]
            joined, n_held, window = joined[n_scored:], n_held - n_scored, window + 1
        held = [joined]
