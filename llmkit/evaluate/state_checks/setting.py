"""What the checks have in common: a model, a prompt, a place for files, and the run that nothing was done to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from llmkit.engine.batch import Segment
from llmkit.engine.context import Context
from llmkit.engine.state.save_load import save_state
from llmkit.evaluate.state_checks.going_on import Continuation, go_on
from llmkit.params import ContextParams

if TYPE_CHECKING:
    from llmkit.memory.sequence import Sequence
    from llmkit.models.model import Model

BLOCK = 32
N_SEQUENCES = 8


@dataclass(frozen=True)
class Setting:
    """n_predict tokens are chosen behind the prompt. `folder` is for files, and somebody else removes it."""

    model: Model
    prompt: list[int]
    n_predict: int
    params: ContextParams
    folder: Path

    @contextmanager
    def context(self, params: ContextParams | None = None) -> Iterator[Context]:
        """A fresh context that holds N_SEQUENCES of such texts."""
        n_ctx = -(-(len(self.prompt) + self.n_predict + 1) // BLOCK) * BLOCK
        sizes = replace(params or self.params, n_ctx=n_ctx, n_seq_max=N_SEQUENCES, kv_unified=False)
        with Context(self.model, sizes) as ctx:
            yield ctx

    @contextmanager
    def prefilled(self) -> Iterator[tuple[Context, Sequence]]:
        """A context with the prompt in sequence 0."""
        with self.context() as ctx:
            seq = ctx.memory.sequence(0)
            ctx.decode([Segment(seq, self.prompt, "none")])
            yield ctx, seq

    @cached_property
    def baseline(self) -> Continuation:
        """What comes behind the prompt when nothing is done in between."""
        with self.context() as ctx:
            return go_on(ctx, ctx.memory.sequence(0), self.prompt, self.n_predict)

    @cached_property
    def file(self) -> Path:
        """A state with the prompt in sequence 0, written by a context that is gone."""
        path = self.folder / "prompt.state"
        with self.prefilled() as (ctx, seq):
            save_state(ctx, path, seq)
        return path

    @property
    def other_prompt(self) -> list[int]:
        """Another text of the same length."""
        return self.prompt[::-1]
