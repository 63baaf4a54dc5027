"""Stand-ins for the engine: a context whose logits are scripted, so that loops can be tested without a model."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from llmkit.errors import ContextFullError

Row = Sequence[float] | NDArray[np.float32]


class FakeSequence:
    """The tokens that were decoded."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


class FakeSequences:
    """A context's sequences by their ids."""

    def __init__(self) -> None:
        self._sequences: dict[int, FakeSequence] = {}

    def sequence(self, seq_id: int) -> FakeSequence:
        return self._sequences.setdefault(seq_id, FakeSequence())

    rewind = "any"

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        self.sequence(dst).tokens[:] = self.sequence(src).tokens

    def seq_rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        assert p1 == -1, "only an end is removed"
        del self.sequence(seq_id).tokens[max(p0, 0) :]
        return True


class FakeContext:
    """Answers with the logits that `script` gives for the tokens so far, and keeps a list of what it was handed.

    `script(tokens)` returns a row. `on_decode` is called before each decode. Like the real one, every decode overwrites
    the rows that the last one returned.
    """

    def __init__(self, script: Callable[[list[int]], Row], n_ctx: int = 64, n_vocab: int = 8) -> None:
        self.n_ctx, self.n_vocab, self.n_threads = n_ctx, n_vocab, 1
        self.script = script
        self.calls: list[tuple[list[int], str]] = []
        self.on_decode: Callable[[], None] = lambda: None
        self.memory = FakeSequences()
        self.n_warm_ups = 0
        self.model: Any = None
        self._rows = np.zeros((1, n_vocab), dtype=np.float32)

    def new_sequence(self) -> FakeSequence:
        return FakeSequence()

    def decode(self, segments: list[Any]) -> NDArray[np.float32]:
        (segment,) = segments
        self.on_decode()
        if segment.seq.n_tokens + len(segment.tokens) > self.n_ctx:
            raise ContextFullError("full")
        self._rows[:] = np.nan
        self.calls.append((list(segment.tokens), segment.logits))
        segment.seq.tokens.extend(segment.tokens)
        if segment.logits == "none":
            return self._rows[:0]
        self._rows[0] = self.script(segment.seq.tokens)
        return self._rows

    def warm_up(self) -> float:
        self.n_warm_ups += 1
        return 0.25

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.closed = True


def counting(n_vocab: int = 8) -> Callable[[list[int]], Row]:
    """A script whose best token is the last one plus one, modulo the vocabulary."""

    def script(tokens: list[int]) -> Row:
        row = np.zeros(n_vocab, dtype=np.float32)
        row[(tokens[-1] + 1) % n_vocab] = 9
        return row

    return script
