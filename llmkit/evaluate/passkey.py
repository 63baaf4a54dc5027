"""The passkey test: a number hidden in a lot of irrelevant text, and whether the model can tell it afterwards.

Owns the prompt, the choice of number and place, which are those of llama.cpp's passkey, and the run: the prompt in
batches, Self-Extend and context shift where they are needed, a greedy answer. Knows nothing of how results are shown.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.batch import Segment
from llmkit.engine.context_shift import SelfExtend, ShiftableMemory, require_shift, shift_context
from llmkit.errors import UsageError

PREFIX = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
JUNK = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
SUFFIX = " What is the pass key? The pass key is"
SEQ_ID = 0


@dataclass(frozen=True)
class PasskeyTask:
    """`passkey` stands before sentence `pos` of `n_junk` equal ones. UsageError when there is no such sentence."""

    passkey: int
    n_junk: int
    pos: int

    def __post_init__(self) -> None:
        if self.n_junk < 1:
            raise UsageError(f"--junk is {self.n_junk}; at least 1 is expected")
        if not 0 <= self.pos < self.n_junk:
            raise UsageError(f"--pos is {self.pos}; from 0 to {self.n_junk - 1} is expected, or -1 for a random one")

    @property
    def text(self) -> str:
        """The whole prompt."""
        key = f" The pass key is {self.passkey}. Remember it. {self.passkey} is the pass key."
        return PREFIX + JUNK * self.pos + key + JUNK * (self.n_junk - self.pos) + SUFFIX

    def is_found(self, answer: str) -> bool:
        """Whether the first number of the answer is the key."""
        number = re.search(r"[0-9]+", answer)
        return number is not None and number[0] == str(self.passkey)


def choose_task(n_junk: int, pos: int, seed: int) -> PasskeyTask:
    """The task of a seed: with seed 1 the one that llama.cpp's passkey always has. pos -1 chooses one."""
    numbers = glibc_rand(seed)
    if pos == -1 and n_junk > 0:
        pos = next(numbers) % n_junk
    return PasskeyTask(next(numbers) % 50000 + 1, n_junk, pos)


def glibc_rand(seed: int) -> Iterator[int]:
    """What glibc's rand() gives after srand(seed): r[i] = r[i-3] + r[i-31], the first 310 thrown away."""
    first = [seed or 1]
    for _ in range(30):
        first.append(16807 * first[-1] % 2147483647)
    last = deque(first + first[:3], maxlen=31)
    for i in count():
        last.append((last[0] + last[-3]) % (1 << 32))
        if i >= 310:
            yield last[-1] >> 1


@dataclass(frozen=True)
class PasskeySizes:
    """n_keep: tokens at the beginning that a shift keeps. n_grp, width: Self-Extend's; a width of 0 chooses one.

    UsageError for what makes no sense.
    """

    n_keep: int = 32
    n_grp: int = 1
    width: int = 0
    n_predict: int = 16
    n_batch: int = 2048

    def __post_init__(self) -> None:
        for name, value, low in (("--keep", self.n_keep, 0), ("-n", self.n_predict, 1), ("-gaw", self.width, 0)):
            if value < low:
                raise UsageError(f"{name} is {value}; at least {low} is expected")
        SelfExtend(self.n_grp, self.width or self.n_grp)

    def n_ctx(self, n_ctx_train: int, wanted: int) -> int:
        """Tokens that the prompt and its answer may use; a context holds n_keep more. wanted: -c, or 0.

        UsageError if that leaves no room.
        """
        n = wanted - self.n_keep if wanted else n_ctx_train * self.n_grp
        if n <= max(self.n_predict, self.n_grp):
            message = f"a context of {wanted or n_ctx_train} tokens has no room beside --keep {self.n_keep}"
            raise UsageError(message, "give a larger context with -c, or a smaller --keep")
        return n

    def chunk(self, n_ctx_train: int, n_ctx: int) -> int:
        """Tokens computed at a time. With Self-Extend its window: as it was given, else -b's, but no more than half of
        the positions that the model knows, so that the groups before have the other half."""
        wanted = self.width if self.n_grp > 1 and self.width else self.n_batch
        if self.n_grp > 1 and not self.width:
            wanted = min(wanted, n_ctx_train // 2)
        return max(min(wanted, n_ctx) // self.n_grp, 1) * self.n_grp


class PasskeyMemory(ShiftableMemory, Protocol):
    """What is needed of a context's memory."""

    def sequence(self, seq_id: int) -> Any: ...

    def clear(self) -> None: ...


class PasskeyContext(Protocol):
    """What is needed of a context."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def memory(self) -> PasskeyMemory: ...

    def decode(self, segments: list[Segment]) -> NDArray[np.float32]: ...


@dataclass
class PasskeyRun:
    """Computes a prompt and the answer to it; iterate for the answer's token ids.

    n_ctx: tokens that prompt and answer may use; the context holds n_keep more, unless they need less. n_keep: tokens
    that a shift keeps. n_batch: tokens computed at a time, with n_grp > 1 the width of Self-Extend's window. tell:
    hears llama.cpp's log lines. UnsupportedError where a shift is needed that the memory cannot do.
    """

    ctx: PasskeyContext
    n_ctx: int
    n_batch: int
    n_keep: int = 32
    n_grp: int = 1
    n_predict: int = 16
    eog_ids: frozenset[int] = frozenset()
    tell: Callable[[str], None] = lambda text: None
    interrupted: Callable[[], bool] = lambda: False
    n_shifts: int = field(default=0, init=False)
    n_past: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.n_grp > 1:
            require_shift(self.ctx.memory, "self-extend (-gan)")

    def answer(self, tokens: list[int]) -> Iterator[int]:
        """Computes the prompt, then gives the answer's ids one by one; `interrupted` ends both."""
        logits = self._prefill(tokens)
        if logits is None:
            return
        self._make_room_for_the_answer()
        began = time.perf_counter()
        for n_left in range(self.n_predict, 0, -1):
            token = int(np.argmax(logits))
            self.seconds = time.perf_counter() - began
            if token in self.eog_ids or self.interrupted():
                return
            yield token
            if n_left > 1:
                logits = self._decode([token], "last")[0]

    def _prefill(self, tokens: list[int]) -> NDArray[np.float32] | None:
        """The last token's logits; None if interrupted."""
        extend = SelfExtend(self.n_grp, self.n_batch)
        logits: NDArray[np.float32] | None = None
        self.ctx.memory.clear()
        self.n_past = self.n_shifts = 0
        n_held = 0
        for i in range(0, len(tokens), self.n_batch):
            if self.interrupted():
                return None
            chunk = tokens[i : i + self.n_batch]
            if self.n_shifts or n_held + len(chunk) > self.n_ctx:
                self._shift(self.n_batch, "")
                n_held = self.ctx.memory.sequence(SEQ_ID).n_tokens
            elif i > 0 and self.n_grp > 1:
                self.n_past = extend.compress(self.ctx.memory, SEQ_ID, self.n_past)
            rows = self._decode(chunk, "last" if i + self.n_batch >= len(tokens) else "none")
            logits = rows[0] if len(rows) else None
            n_held += len(chunk)
            self.tell(f"processed: [{i:6d}, {i + len(chunk):6d})")
        return logits

    def _make_room_for_the_answer(self) -> None:
        n_discard = self.n_past - self.n_ctx + self.n_predict
        if n_discard > 0:
            self._shift(n_discard, " to free space for the answer")

    def _shift(self, n_discard: int, why: str) -> None:
        require_shift(self.ctx.memory, "a prompt that outgrows the context")
        self.tell(f"shifting KV cache with {n_discard}{why}")
        self.n_past = shift_context(self.ctx.memory, SEQ_ID, self.n_keep, n_discard)
        self.n_shifts += 1

    def _decode(self, tokens: list[int], logits: Any) -> NDArray[np.float32]:
        rows = self.ctx.decode([Segment(self.ctx.memory.sequence(SEQ_ID), tokens, logits)])
        self.n_past += len(tokens)
        return rows
