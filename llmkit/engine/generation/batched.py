"""Several continuations of one prompt, decoded together.

Owns the loop over them: the prompt is computed once, its memory is shared by all, and each step computes one token of
every continuation that is not finished. What happens to a single one is generate.py's. Continuation i has the bits that
it would have alone: neither the company in a batch nor whose memory a prompt lies in changes a logit.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.batch import Segment
from llmkit.engine.generation.generate import GeneratedToken, Generation, StopReason
from llmkit.errors import ContextFullError, UsageError
from llmkit.params import MAX_SEED

Rows = Sequence[NDArray[np.float32]] | NDArray[np.float32]


class SharedMemory(Protocol):
    """What is needed of a context's memory."""

    def seq_cp(self, src: int, dst: int) -> None: ...

    def seq_rm(self, seq_id: int) -> bool: ...


class SharingContext(Protocol):
    """What is needed of a context."""

    @property
    def memory(self) -> SharedMemory: ...

    def decode(self, segments: list[Segment]) -> NDArray[np.float32]: ...


def seeds(first: int, n: int) -> list[int]:
    """first, first + 1, ...: n seeds; the number that stands for "choose one" is passed over."""
    return [(first + i) % MAX_SEED for i in range(n)]


@dataclass
class BatchedGeneration:
    """Iterate it once for (which, token) pairs; when that ends, each generation has its `stop_reason` and `tail`.

    generations: of one prompt, with equal parameters and one object of timings; number i continues sequence i of the
    context, which is empty. A finished one's memory is given back. When all cells are used, the last of those that
    still go on ends, so that the others have room.
    """

    ctx: SharingContext
    generations: list[Generation]

    def __post_init__(self) -> None:
        if not self.generations:
            raise UsageError("there is nothing to generate", "ask for at least one sequence")

    def __iter__(self) -> Iterator[tuple[int, GeneratedToken]]:
        rows = self._prefill()
        live = self._live()
        while live:
            for i, row in zip(live, rows, strict=True):
                token = self.generations[i].choose(row)
                self._end(i)
                yield i, token
            live, rows = self._decode(self._live())

    def _live(self) -> list[int]:
        return [i for i, generation in enumerate(self.generations) if generation.stop_reason is None]

    def _prefill(self) -> Rows:
        """Computes the prompt once, and shares its memory; its last token's logits, once for each continuation."""
        first = self.generations[0]
        for generation in self.generations:
            generation.sampler.accept(generation.prompt_ids)
        logits = first.prefill()
        if logits is None:
            for generation in self.generations:
                generation.stop_reason = first.stop_reason
            return []
        for i in range(1, len(self.generations)):
            self.ctx.memory.seq_cp(0, i)
        return [logits] * len(self.generations)

    def _decode(self, live: list[int]) -> tuple[list[int], Rows]:
        """Computes the newest token of each live one; those that go on, and their logits."""
        if live and self.generations[0].interrupted():
            self._stop(live, StopReason.INTERRUPTED)
            return [], []
        began = time.perf_counter()
        while live:
            segments = [Segment(g.seq, g.ids[-1:], "last") for g in (self.generations[i] for i in live)]
            try:
                rows = self.ctx.decode(segments)
            except ContextFullError:
                self._stop([live.pop()], StopReason.CONTEXT)
                continue
            self.generations[0].timings.decode_s += time.perf_counter() - began
            return live, rows
        return [], []

    def _stop(self, which: list[int], reason: StopReason) -> None:
        for i in which:
            self.generations[i].stop_reason = reason
            self._end(i)

    def _end(self, i: int) -> None:
        """Lets go of what a finished continuation holds."""
        generation = self.generations[i]
        if generation.stop_reason is not None:
            generation.finish()
            self.ctx.memory.seq_rm(i)
