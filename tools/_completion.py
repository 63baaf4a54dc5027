"""How a completion is shown: as text while it grows, as token ids, or as one JSON object at the end.

Owns the formats of `llmkit run`. Knows nothing of how tokens are made. Text and ids go to stdout, all else to stderr.
"""

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from llmkit import report
from llmkit.engine.generation.generate import GeneratedToken, Generation
from llmkit.engine.generation.logprobs import TokenLogprob

LOWEST_LOGPROB = -3.4028234663852886e38
"""Stands for the logarithm of zero, for which JSON has no word; llama.cpp's choice."""


class Pieces(Protocol):
    """What is needed of a tokenizer to name a token."""

    def piece_bytes(self, id: int, special: bool = False) -> bytes: ...


class TextView:
    """The prompt if it is shown, and then the pieces as they come. On a terminal the last line is ended."""

    def __init__(self, prompt: str) -> None:
        self._last = prompt
        report.stream(report.painted(prompt, report.YELLOW))

    def add(self, token: GeneratedToken) -> None:
        """Shows what the token completes."""
        self._write(token.text)

    def end(self, tail: str) -> None:
        """Shows the rest."""
        self._write(tail)
        if self._last and not self._last.endswith("\n") and _stdout_is_terminal():
            report.stream("\n")

    def _write(self, text: str) -> None:
        report.stream(text)
        self._last = text or self._last


class IdsView:
    """For models without a tokenizer: one line of comma-separated ids, which `--ids` takes again."""

    def __init__(self, prompt_ids: list[int]) -> None:
        report.stream(",".join(map(str, prompt_ids)))
        self._separator = "," if prompt_ids else ""

    def add(self, token: GeneratedToken) -> None:
        """Shows the token's id."""
        report.stream(f"{self._separator}{token.id}")
        self._separator = ","

    def end(self, tail: str) -> None:
        """Ends the line."""
        report.stream("\n")


class SilentView:
    """Shows nothing: for JSON, which comes at the end."""

    def add(self, token: GeneratedToken) -> None:
        """Nothing."""

    def end(self, tail: str) -> None:
        """Nothing."""


def _stdout_is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


View = TextView | IdsView | SilentView


def json_result(
    model: str, generation: Generation, tokens: list[GeneratedToken], pieces: Pieces | None, past: Sequence[int] = ()
) -> dict[str, Any]:
    """The object that `--json` prints; `text` is null for a model without a tokenizer, `logprobs` if not asked for.
    past: what was computed before the prompt."""
    text = "".join(token.text for token in tokens) + generation.tail
    return {
        "model": model,
        "prompt_ids": [*past, *generation.prompt_ids],
        "ids": generation.ids,
        "text": None if pieces is None else text,
        "stop_reason": generation.stop_reason,
        "stopping_word": generation.stopping_word,
        "timings": {"cache_n": len(past)} | generation.timings.to_json(),
        "logprobs": None if generation.params.n_logprobs is None else [step_json(token, pieces) for token in tokens],
    }


def logprob_lines(tokens: list[GeneratedToken], pieces: Pieces | None) -> list[str]:
    """A line per token for people: id, log-probability, text, and the best tokens with theirs."""
    lines = []
    for token in tokens:
        if token.logprobs is not None:
            chosen = token.logprobs.chosen
            best = "  ".join(f"{_name(t.id, pieces)} {t.logprob:.4f}" for t in token.logprobs.top)
            lines.append(f"{chosen.id:>8} {chosen.logprob:>9.4f}  {_name(chosen.id, pieces):<16} {best}".rstrip())
    return lines


def step_json(token: GeneratedToken, pieces: Pieces | None) -> dict[str, Any]:
    """One token's log-probabilities; the fields are those of llama.cpp's completion_probabilities."""
    assert token.logprobs is not None
    step = _token_json(token.logprobs.chosen, pieces)
    return step | {"top_logprobs": [_token_json(t, pieces) for t in token.logprobs.top]}


def _token_json(token: TokenLogprob, pieces: Pieces | None) -> dict[str, Any]:
    raw = None if pieces is None else pieces.piece_bytes(token.id, special=True)
    return {
        "id": token.id,
        "token": None if raw is None else raw.decode("utf-8", "replace"),
        "bytes": None if raw is None else list(raw),
        "logprob": max(token.logprob, LOWEST_LOGPROB),
    }


def _name(token: int, pieces: Pieces | None) -> str:
    return str(token) if pieces is None else repr(pieces.piece_bytes(token, special=True).decode("utf-8", "replace"))
