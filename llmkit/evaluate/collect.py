"""Runs a text through a model for the sake of what a collector sees, chunk by chunk; and scores it where asked.

Owns which tokens go through: all of each chunk, as in llama.cpp's imatrix. The collector is the context's.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llmkit.evaluate.rows import Part, Stop, logits_of, never
from llmkit.evaluate.scores import RowScores
from llmkit.evaluate.windows import Windows

if TYPE_CHECKING:
    from llmkit.engine.context import Context

Scores = NDArray[np.float64]


def run_windows(
    ctx: "Context", windows: Windows, n_seq: int, *, score: bool, all_outputs: bool, stop: Stop = never
) -> Iterator[list[Scores]]:
    """n_seq windows after n_seq windows: -log p of each one's scored tokens, float64 [n_scored]; empty without `score`.

    all_outputs: the output matrix gets all rows, and not those alone that are scored. What `stop` interrupts is not
    given, but its first rows may have been collected.
    """
    scores = RowScores(ctx)
    for start in range(0, windows.n, n_seq):
        group = range(start, min(start + n_seq, windows.n))
        sequences = [ctx.new_sequence() for _ in group]
        ids = [_inputs(windows, i) for i in group]
        cut = windows.first if score else windows.length
        heads = [Part(seq, tokens[:cut], all_outputs) for seq, tokens in zip(sequences, ids, strict=True)]
        tails = [Part(seq, tokens[cut:], True) for seq, tokens in zip(sequences, ids, strict=True)]
        try:
            for _ in logits_of(ctx, heads, stop):
                pass
            targets = np.array([token for tokens in ids for token in (*tokens[cut + 1 :], 0)], np.int64)
            nll = [np.zeros(0)]
            for logits in logits_of(ctx, tails, stop) if score else ():
                wanted, targets = targets[: len(logits)], targets[len(logits) :]
                nll.append(scores.nll(logits, scores.statistics(logits), wanted))
        finally:
            for seq in sequences:
                ctx.free_sequence(seq)
        if stop():
            return
        # The last token of a window predicts what is not in it.
        yield [part[:-1] for part in np.concatenate(nll).reshape(len(group), -1)]


def _inputs(windows: Windows, i: int) -> list[int]:
    """All tokens of window i."""
    return [*windows.context(i), *windows.scored(i), int(windows.tokens[i * windows.step + windows.length - 1])]
