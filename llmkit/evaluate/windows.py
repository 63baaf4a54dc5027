"""How a text is cut into windows, and which of their tokens are scored.

Owns llama.cpp's two ways: chunks side by side of which the second half is scored, and windows that overlap and move on
by a stride. Knows nothing of models.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmkit.errors import UsageError
from llmkit.evaluate.errors import ShortTextError

ALL = -1
"""The number of chunks that means: as many as the text has."""

_CONTEXT_STEP = 256  # llama.cpp's contexts are multiples of it


@dataclass(frozen=True)
class Windows:
    """`n` windows of `length` tokens, each starting `step` after the one before.

    The tokens after position `first` are scored, so the logits of first .. length - 2 are needed and the last token is
    never computed. Where there is `bos`, it takes the place of each window's first token.
    """

    tokens: NDArray[np.int32]
    length: int
    step: int
    first: int
    n: int
    bos: int | None

    @property
    def n_scored(self) -> int:
        """Scored tokens of a window."""
        return self.length - 1 - self.first

    def context(self, i: int) -> list[int]:
        """The tokens of window i whose logits nobody needs."""
        return self._inputs(i)[: self.first]

    def scored(self, i: int) -> list[int]:
        """The tokens of window i whose logits predict the scored ones."""
        return self._inputs(i)[self.first :]

    def _inputs(self, i: int) -> list[int]:
        inputs = self.tokens[i * self.step : i * self.step + self.length - 1].tolist()
        return inputs if self.bos is None else [self.bos, *inputs[1:]]

    def targets(self, row: int, n: int) -> NDArray[np.int64]:
        """What rows row .. row + n of all windows' logits, one after another, are to predict; int64 [n]."""
        rows = np.arange(row, row + n)
        window, offset = rows // self.n_scored, rows % self.n_scored
        targets: NDArray[np.int64] = self.tokens[window * self.step + self.first + 1 + offset].astype(np.int64)
        return targets


def chunks(tokens: NDArray[np.int32], n_ctx: int, n_chunks: int, bos: int | None) -> Windows:
    """Chunks of n_ctx tokens side by side, scored from their middle on; at most n_chunks of them unless that is ALL."""
    check_sizes(n_ctx, n_chunks)
    _need(tokens, n_ctx)
    available = tokens.size // n_ctx
    n = available if n_chunks == ALL else min(n_chunks, available)
    return Windows(tokens, n_ctx, n_ctx, n_ctx // 2, n, bos)


def strided(tokens: NDArray[np.int32], n_ctx: int, stride: int, n_chunks: int, bos: int | None) -> Windows:
    """Windows that start `stride` tokens after one another, of which the last `stride` tokens are scored.

    Their length is llama.cpp's: n_ctx + stride / 2, rounded up to a multiple of 256.
    """
    check_sizes(n_ctx, n_chunks, stride)
    length = strided_length(n_ctx, stride)
    _need(tokens, length)
    available = -(-(tokens.size - length) // stride)
    n = available if n_chunks == ALL else min(n_chunks, available)
    return Windows(tokens, length, stride, length - 1 - stride, n, bos)


def strided_length(n_ctx: int, stride: int) -> int:
    """Tokens of a window that moves on by `stride`."""
    return -(-(n_ctx + stride // 2) // _CONTEXT_STEP) * _CONTEXT_STEP


def check_sizes(n_ctx: int, n_chunks: int, stride: int = 0) -> None:
    """UsageError unless windows can be made of these; a stride of 0 means chunks side by side."""
    if n_ctx < 4:
        raise UsageError(f"the context (-c) is {n_ctx}; at least 4 is expected", "512 is usual")
    if n_chunks != ALL and n_chunks < 1:
        raise UsageError(f"--chunks is {n_chunks}; at least 1 is expected", "-1 takes all that the text has")
    if stride != 0 and not 1 <= stride < strided_length(n_ctx, stride):
        raise UsageError(
            f"--ppl-stride is {stride}; at least 1 and less than the window is expected", "half of -c is usual"
        )


def _need(tokens: NDArray[np.int32], length: int) -> None:
    if tokens.size < 2 * length:
        message = f"the text has {tokens.size} tokens; windows of {length} need at least {2 * length}"
        raise ShortTextError(message, "give a longer text or a smaller context (-c)")
