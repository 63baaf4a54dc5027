"""Takes the time of a case as llama-bench does: a warm-up run, then repetitions, each from the same state.

Tokens are random, as there. Knows the engine and the clock; nothing of what the figures mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from llmkit.engine.batch import Segment

if TYPE_CHECKING:
    from llmkit.bench.cases import Case
    from llmkit.engine.context import Context
    from llmkit.memory.sequence import Sequence

Tell = Callable[[str], None]


class Stopwatch:
    """Runs prompts and generations of random tokens on one sequence of a context."""

    def __init__(self, ctx: Context, n_batch: int) -> None:
        self._ctx, self._n_batch = ctx, n_batch
        self._random = np.random.default_rng(0)
        self.seq: Sequence = ctx.new_sequence()

    def tokens(self, n: int) -> list[int]:
        """Random ids of the model's vocabulary."""
        ids: list[int] = self._random.integers(0, self._ctx.model.config.n_vocab, n).tolist()
        return ids

    def prompt(self, n: int) -> None:
        """Computes `n` tokens in batches, with the logits of each batch's last token, as llama-bench does."""
        for first in range(0, n, self._n_batch):
            self._ctx.decode([Segment(self.seq, self.tokens(min(self._n_batch, n - first)), "last")])

    def generate(self, n: int) -> None:
        """Computes `n` tokens one by one, with logits. The choice of a token is not part of it, as in llama-bench."""
        for token in self.tokens(n):
            self._ctx.decode([Segment(self.seq, [token], "last")])

    def back_to(self, n_tokens: int) -> None:
        """Forgets what came after the first `n_tokens`."""
        self._ctx.kv.truncate(self.seq, n_tokens)


def run_case(ctx: Context, case: Case, reps: int, warm_up: bool = True, tell: Tell = lambda text: None) -> list[int]:
    """Nanoseconds of each of `reps` repetitions. `tell` hears what begins."""
    watch = Stopwatch(ctx, case.n_batch)
    if warm_up:
        tell("warm-up run")
        watch.prompt(case.n_prompt)
        watch.generate(min(case.n_gen, 1))
        watch.back_to(0)
    if case.n_depth:
        tell("depth run")
        watch.prompt(case.n_depth)
    samples = []
    for i in range(reps):
        tell(f"run {i + 1}/{reps}")
        start = time.perf_counter_ns()
        watch.prompt(case.n_prompt)
        watch.generate(case.n_gen)
        samples.append(time.perf_counter_ns() - start)
        watch.back_to(case.n_depth)
    return samples


def decode_together(ctx: Context, n_sequences: int, n_prompt: int, n_gen: int) -> float:
    """Seconds for `n_gen` steps that give each of `n_sequences` sequences a token, after a prompt of its own each."""
    watches = [Stopwatch(ctx, max(n_prompt, 1)) for _ in range(n_sequences)]
    for watch in watches:
        watch.prompt(n_prompt)
    steps = [[watch.tokens(1) for watch in watches] for _ in range(n_gen)]
    start = time.perf_counter()
    for step in steps:
        ctx.decode([Segment(watch.seq, ids, "last") for watch, ids in zip(watches, step, strict=True)])
    seconds = time.perf_counter() - start
    for watch in watches:
        ctx.free_sequence(watch.seq)
    return seconds
