"""Completing one prompt in one sequence, token by token.

Owns the loop, when it stops and what it measures. Knows nothing of where the text goes, of other sequences, or of how
logits are made.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmkit.engine.batch import Segment, Wanted
from llmkit.engine.generation.logprobs import Logprobs, sampled_logprobs, token_logprobs
from llmkit.engine.generation.sampler import Sampler
from llmkit.engine.generation.stop_strings import StopStrings
from llmkit.engine.generation.timings import Timings
from llmkit.errors import ContextFullError, PromptTooLongError, UsageError
from llmkit.params import GenerateParams


class StopReason(StrEnum):
    """Why a generation ended."""

    EOS = "eos"
    WORD = "word"
    LIMIT = "limit"
    CONTEXT = "context"
    INTERRUPTED = "interrupted"


class DecodedSequence(Protocol):
    """What a generation needs of a sequence."""

    @property
    def n_tokens(self) -> int: ...


class DecodingContext(Protocol):
    """What a generation needs of a context."""

    @property
    def n_ctx(self) -> int: ...

    def decode(self, segments: list[Segment]) -> NDArray[np.float32]: ...


class TextStream(Protocol):
    """Turns ids into whole characters; holds back the bytes of an unfinished one."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


def never() -> bool:
    """The answer of a generation that nobody interrupts."""
    return False


def nothing() -> None:
    """What is to be done at the end of a generation whose sequence is somebody else's."""


class NoText:
    """The stream of a model without a tokenizer: no token has a text."""

    def push(self, token: int) -> str:
        """Nothing."""
        return ""

    def finish(self) -> str:
        """Nothing."""
        return ""


@dataclass(frozen=True)
class GeneratedToken:
    """A token, the characters that it completes (none if it ends the text), and its log-probabilities if asked for."""

    id: int
    text: str
    logprobs: Logprobs | None


@dataclass
class Generation:
    """Iterate it once for the tokens; when that ends, `stop_reason` says why and `tail` holds the characters that no
    further byte completed.

    Nothing is computed before it is iterated. The token that ends the text counts as generated (it is in `ids`, last)
    and has no text.

    eog_ids: tokens that end the text. stream: spells the tokens. stops: strings that end the text, for this generation
    alone; stop_ids: tokens that stand for one of them and have no text. interrupted: asked between two calls of decode.
    timings: where to count. at_end: called when it is not iterated any more.
    Raises UsageError for an empty prompt, ContextFullError if the prompt does not fit.
    """

    ctx: DecodingContext
    seq: DecodedSequence
    prompt_ids: Sequence[int]
    sampler: Sampler
    params: GenerateParams = field(default_factory=GenerateParams)
    eog_ids: frozenset[int] = frozenset()
    stream: TextStream = field(default_factory=NoText)
    stops: StopStrings = field(default_factory=StopStrings)
    stop_ids: Mapping[int, str] = field(default_factory=dict)
    interrupted: Callable[[], bool] = never
    timings: Timings = field(default_factory=Timings)
    at_end: Callable[[], None] = nothing
    ids: list[int] = field(default_factory=list, init=False)
    stop_reason: StopReason | None = field(default=None, init=False)
    tail: str = field(default="", init=False)
    stopping_word: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise UsageError("the prompt holds no token, so there is nothing to continue")
        n_needed, n_ctx = self.seq.n_tokens + len(self.prompt_ids), self.ctx.n_ctx
        if n_needed > n_ctx:
            raise PromptTooLongError(n_needed, n_ctx)

    def __iter__(self) -> Iterator[GeneratedToken]:
        try:
            self.sampler.accept(self.prompt_ids)
            logits = self.prefill()
            while self.stop_reason is None and logits is not None:
                yield self.choose(logits)
                if self.stop_reason is None:
                    logits = self._decode_last()
            self.finish()
        finally:
            self.at_end()

    def texts(self) -> Iterator[str]:
        """The text instead of the tokens, in pieces that are not empty, as it comes; the tail too."""
        for token in self:
            if token.text:
                yield token.text
        if self.tail:
            yield self.tail

    def text(self) -> str:
        """The whole text, when it has been generated."""
        return "".join(self.texts())

    def finish(self) -> None:
        """Finds the tail: no further token comes."""
        self.tail = self.stops.push(self.stream.finish())
        self._note_stop_string()
        self.tail += self.stops.finish()

    def prefill(self) -> NDArray[np.float32] | None:
        """Computes the prompt in chunks; the last token's logits, or None if nothing is to be chosen from them."""
        began = time.perf_counter()
        n_batch, n_prompt = self.params.n_batch, len(self.prompt_ids)
        wanted: Wanted = "none" if self.params.n_predict == 0 else "last"
        logits: NDArray[np.float32] | None = None
        for start in range(0, n_prompt, n_batch):
            if self.interrupted():
                self.stop_reason = StopReason.INTERRUPTED
                break
            end = min(start + n_batch, n_prompt)
            rows = self.ctx.decode(
                [Segment(self.seq, list(self.prompt_ids[start:end]), wanted if end == n_prompt else "none")]
            )
            self.timings.prompt_n += end - start
            logits = rows[0] if len(rows) else None
        self.timings.prompt_s += time.perf_counter() - began
        if self.stop_reason is None and logits is None:
            self.stop_reason = StopReason.LIMIT
        return logits

    def choose(self, logits: NDArray[np.float32]) -> GeneratedToken:
        """Chooses and spells a token, and decides whether it is the last."""
        began = time.perf_counter()
        n_logprobs, after = self.params.n_logprobs, self.params.after_sampling
        left = self.sampler.candidates(logits) if after and n_logprobs is not None else None
        token = self.sampler.sample(logits)
        logprobs = None
        if left is not None:
            logprobs = sampled_logprobs(left, token, n_logprobs or 0)
        elif n_logprobs is not None:
            logprobs = token_logprobs(logits, token, n_logprobs)
        self.ids.append(token)
        text = self._text_of(token)
        if self.stop_reason is None and self.sampler.finished:
            self.stop_reason = StopReason.EOS
        if self.stop_reason is None and len(self.ids) == self.params.n_predict:
            self.stop_reason = StopReason.LIMIT
        elif self.stop_reason is None and self.seq.n_tokens >= self.ctx.n_ctx:
            self.stop_reason = StopReason.CONTEXT
        if len(self.ids) == 1:
            self.timings.mark_first_token()
        else:
            self.timings.decode_n += 1
            self.timings.decode_s += time.perf_counter() - began
        return GeneratedToken(token, text, logprobs)

    def _text_of(self, token: int) -> str:
        """The characters that can be shown after this token; the stop reason if it ends the text."""
        if token in self.eog_ids:
            self.stop_reason = StopReason.EOS
            return ""
        if token in self.stop_ids:
            self.stop_reason, self.stopping_word = StopReason.WORD, self.stop_ids[token]
            return ""
        text = self.stops.push(self.stream.push(token))
        self._note_stop_string()
        return text

    def _note_stop_string(self) -> None:
        if self.stops.found is not None and self.stopping_word is None:
            self.stop_reason, self.stopping_word = StopReason.WORD, self.stops.found

    def _decode_last(self) -> NDArray[np.float32] | None:
        """Computes the newest token; its logits, or None if the generation stops here instead."""
        if self.interrupted():
            self.stop_reason = StopReason.INTERRUPTED
            return None
        began = time.perf_counter()
        try:
            logits: NDArray[np.float32] = self.ctx.decode([Segment(self.seq, self.ids[-1:], "last")])[0]
        except ContextFullError:
            # The sequence alone would fit, but others hold the cells.
            self.stop_reason = StopReason.CONTEXT
            return None
        self.timings.decode_s += time.perf_counter() - began
        return logits
