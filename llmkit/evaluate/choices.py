"""Log-probabilities of several continuations of one beginning: what all multiple-choice tasks come down to.

Owns how tasks share batches: the beginnings of up to 32 tasks in one, then the first continuation of each, the second,
and so on, each after forgetting the one before. Knows no task format.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmkit.evaluate.errors import TaskFileError
from llmkit.evaluate.rows import Part, Stop, logits_of, never
from llmkit.evaluate.scores import RowScores

if TYPE_CHECKING:
    from llmkit.engine.context import Context

TASKS_AT_ONCE = 32
_BLOCK = 32  # cells that a sequence takes at a time

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Choices:
    """Tokens that all continuations share (none where their first ones differ), and at least one more of each."""

    prefix: list[int]
    tails: list[list[int]]

    @property
    def n_tokens(self) -> int:
        """Tokens of the longest."""
        return len(self.prefix) + max(map(len, self.tails))


def split_choices(texts: list[list[int]]) -> Choices:
    """From the tokens of whole texts; the shared prefix leaves each a token of its own."""
    shared = 0
    while shared < min(map(len, texts)) - 1 and len({text[shared] for text in texts}) == 1:
        shared += 1
    return Choices(texts[0][:shared], [text[shared:] for text in texts])


def mean_log_prob(log_probs: Doubles) -> float:
    """Over the tokens that have one; minus infinity if none has."""
    known = log_probs[~np.isnan(log_probs)]
    return float(known.mean()) if known.size else -np.inf


def check_fits(tasks: list[Choices], n_cells: int) -> None:
    """TaskFileError names the first task that is too long for the context."""
    for i, task in enumerate(tasks):
        if task.n_tokens > n_cells:
            message = f"task {i + 1} has {task.n_tokens} tokens, and the context has room for {n_cells}"
            raise TaskFileError(message, "give a larger -c")


def choice_log_probs(ctx: "Context", tasks: list[Choices], stop: Stop = never) -> Iterator[list[Doubles]]:
    """For each task in order, log p of each token of each tail given all before it; NaN where nothing is before it."""
    scores = RowScores(ctx)
    for group in _groups(tasks, ctx.n_ctx):
        sequences = [ctx.new_sequence() for _ in group]
        try:
            results = _group_log_probs(ctx, scores, group, sequences, stop)
        finally:
            for seq in sequences:
                ctx.free_sequence(seq)
        if not results:
            return
        yield from results


def _groups(tasks: list[Choices], n_cells: int) -> Iterator[list[Choices]]:
    """Runs of tasks that fit into the context together."""
    group: list[Choices] = []
    left = n_cells // _BLOCK
    for task in tasks:
        n_blocks = -(-task.n_tokens // _BLOCK)
        if group and (n_blocks > left or len(group) == TASKS_AT_ONCE):
            yield group
            group, left = [], n_cells // _BLOCK
        group.append(task)
        left -= n_blocks
    if group:
        yield group


def _group_log_probs(
    ctx: "Context", scores: RowScores, group: list[Choices], sequences: list[Any], stop: Stop
) -> list[list[Doubles]]:
    """For each task of the group, each tail's; empty on `stop`."""
    parts = [Part(seq, task.prefix[:-1], False) for seq, task in zip(sequences, group, strict=True)]
    for _ in logits_of(ctx, [part for part in parts if part.tokens], stop):
        pass
    if stop():
        return []
    results: list[list[Doubles]] = [[] for _ in group]
    for k in range(max(len(task.tails) for task in group)):
        members = [i for i, task in enumerate(group) if k < len(task.tails)]
        tails = [(sequences[i], group[i].prefix, group[i].tails[k]) for i in members]
        found = _tail_log_probs(ctx, scores, tails, stop)
        if stop():
            return []  # a pass may be missing, of which nothing shows
        for i, log_probs in zip(members, found, strict=True):
            results[i].append(log_probs)
        for i in members:
            ctx.kv.truncate(sequences[i], max(0, len(group[i].prefix) - 1))
    return results


def _tail_log_probs(
    ctx: "Context", scores: RowScores, tails: list[tuple[Any, list[int], list[int]]], stop: Stop
) -> list[Doubles]:
    """(sequence with all of the prefix but its last token, prefix, tail) each."""
    parts = [Part(seq, prefix[-1:] + tail[:-1], True) for seq, prefix, tail in tails]
    targets = [tail if prefix else tail[1:] for _, prefix, tail in tails]
    wanted = np.array([token for tokens in targets for token in tokens], np.int64)
    log_probs, done = np.full(wanted.size, np.nan), 0
    for logits in logits_of(ctx, [part for part in parts if part.tokens], stop):
        now = slice(done, done + len(logits))
        log_probs[now] = -scores.nll(logits, scores.statistics(logits), wanted[now])
        done += len(logits)
    cut = np.split(log_probs, np.cumsum([len(tokens) for tokens in targets])[:-1])
    return [part if tail[1] else np.concatenate([[np.nan], part]) for part, tail in zip(cut, tails, strict=True)]
