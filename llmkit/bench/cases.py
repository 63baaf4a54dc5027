"""What to measure: the parameters as lists, and the cases that their combinations make, in llama-bench's order.

Defaults are llama-bench's. Knows nothing of how a case is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from llmkit.errors import UsageError
from llmkit.params import ContextParams

FLASH_AUTO, FLASH_ON = "auto", "on"


@dataclass(frozen=True)
class Case:
    """One test: after `n_depth` tokens, the time of `n_prompt` tokens in batches and then of `n_gen` single ones."""

    model: Path
    n_prompt: int
    n_gen: int
    n_depth: int
    n_batch: int = 2048
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    n_threads: int = 1
    flash_attn: str = FLASH_AUTO

    @property
    def name(self) -> str:
        """As llama-bench calls it: pp512, tg128, pp512+tg128, and ` @ d4096` for a depth."""
        parts = [f"{kind}{n}" for kind, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n > 0]
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def n_tokens(self) -> int:
        """Tokens that are timed."""
        return self.n_prompt + self.n_gen

    def context_params(self) -> ContextParams:
        """A context that holds the case and not a token more; repetitions go back to the same state."""
        n_ctx = self.n_depth + self.n_tokens
        return ContextParams(
            n_ctx, self.n_batch, self.n_ubatch, self.n_threads, self.type_k, self.type_v, swa_full=True
        )


@dataclass(frozen=True)
class Parameters:
    """The lists. `n_pg` are pairs of prompt and generation; `reps` and `delay` (seconds) hold for every case."""

    models: list[Path]
    n_prompt: list[int] = field(default_factory=lambda: [512])
    n_gen: list[int] = field(default_factory=lambda: [128])
    n_pg: list[tuple[int, int]] = field(default_factory=list)
    n_depth: list[int] = field(default_factory=lambda: [0])
    n_batch: list[int] = field(default_factory=lambda: [2048])
    n_ubatch: list[int] = field(default_factory=lambda: [512])
    type_k: list[str] = field(default_factory=lambda: ["f16"])
    type_v: list[str] = field(default_factory=lambda: ["f16"])
    n_threads: list[int] = field(default_factory=lambda: [1])
    flash_attn: list[str] = field(default_factory=lambda: [FLASH_AUTO])
    reps: int = 5
    delay: int = 0
    warm_up: bool = True

    def __post_init__(self) -> None:
        for name, low, values in (
            ("-r", 1, [self.reps]),
            ("--delay", 0, [self.delay]),
            ("-t", 1, self.n_threads),
            ("-b", 1, self.n_batch),
            ("-ub", 1, self.n_ubatch),
        ):
            if min(values) < low:
                raise UsageError(f"{name} is {min(values)}; at least {low} is expected")

    def cases(self) -> Iterator[Case]:
        """All combinations: the tests of one model follow each other, and prompts come before generations."""
        tests = [(n, 0) for n in self.n_prompt] + [(0, n) for n in self.n_gen] + self.n_pg
        for model, n_batch, n_ubatch, type_k, type_v, flash, n_threads, n_depth, (n_prompt, n_gen) in product(
            self.models,
            self.n_batch,
            self.n_ubatch,
            self.type_k,
            self.type_v,
            self.flash_attn,
            self.n_threads,
            self.n_depth,
            [test for test in tests if sum(test)],
        ):
            yield Case(model, n_prompt, n_gen, n_depth, n_batch, n_ubatch, type_k, type_v, n_threads, flash)
