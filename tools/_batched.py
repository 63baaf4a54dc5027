"""Several continuations of one prompt for `llmkit run -np N`: how they are shown.

The form is that of llama.cpp's `batched`: `sequence i:`, and the prompt with its text. The first text that is not yet
complete streams; those behind it wait until it is their turn. JSON holds all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llmkit import report
from llmkit.engine.generation.generate import GeneratedToken, Generation

from ._completion import Pieces, logprob_lines, step_json


@dataclass
class SequencesView:
    """Shows tokens of several generations as they come, as `spell` says; nothing at all unless `shown`."""

    generations: list[Generation]
    prompt: str
    shown: bool = True
    spell: Callable[[GeneratedToken], str] = lambda token: token.text
    tokens: list[list[GeneratedToken]] = field(init=False)
    _current: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in self.generations]
        self._begin()

    def add(self, which: int, token: GeneratedToken) -> None:
        """Shows what the token completes, if it is the turn of its sequence."""
        self.tokens[which].append(token)
        if which == self._current:
            self._write(self.spell(token))
            while self._current < len(self.generations) and self.generations[self._current].stop_reason is not None:
                self._finish()

    def end(self) -> None:
        """Shows the rest."""
        while self._current < len(self.generations):
            self._finish()

    def _begin(self) -> None:
        """The title, and what there is already."""
        if self._current < len(self.generations):
            self._write(f"sequence {self._current}:\n\n{self.prompt}")
            self._write("".join(map(self.spell, self.tokens[self._current])))

    def _finish(self) -> None:
        self._write(f"{self.generations[self._current].tail}\n\n")
        self._current += 1
        self._begin()

    def _write(self, text: str) -> None:
        if self.shown:
            report.stream(text)


def sequences_json(model: str, view: SequencesView, pieces: Pieces | None) -> dict[str, Any]:
    """The object that `--json` prints; texts are null for a model without a tokenizer."""
    first = view.generations[0]
    return {
        "model": model,
        "prompt_ids": list(first.prompt_ids),
        "sequences": [
            _sequence_json(generation, tokens, pieces)
            for generation, tokens in zip(view.generations, view.tokens, strict=True)
        ],
        "timings": first.timings.to_json(),
    }


def _sequence_json(generation: Generation, tokens: list[GeneratedToken], pieces: Pieces | None) -> dict[str, Any]:
    text = "".join(token.text for token in tokens) + generation.tail
    return {
        "seed": generation.sampler.seed,
        "ids": generation.ids,
        "text": None if pieces is None else text,
        "stop_reason": generation.stop_reason,
        "stopping_word": generation.stopping_word,
        "logprobs": None if generation.params.n_logprobs is None else [step_json(token, pieces) for token in tokens],
    }


def sequences_logprobs(view: SequencesView, pieces: Pieces | None) -> list[str]:
    """Each sequence's log-probabilities, for people."""
    lines = []
    for i, tokens in enumerate(view.tokens):
        lines += [f"sequence {i}:", *logprob_lines(tokens, pieces)]
    return lines


def spell_id(token: GeneratedToken) -> str:
    """For models without a tokenizer: ids, which `--ids` takes again."""
    return f",{token.id}"
