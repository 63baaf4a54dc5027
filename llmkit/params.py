"""The frozen options that the engine takes, checked when they are made.

Owns names, defaults and ranges. Knows nothing about who sets them (a command line, an HTTP body) or what they are used
for. Names and defaults are llama.cpp's.
"""

import math
from dataclasses import dataclass

from llmkit.errors import UsageError

RANDOM_SEED = -1
"""The seed that stands for "choose one"; llama.cpp's clients also write it as 4294967295."""

MAX_SEED = 0xFFFFFFFF


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen: top-k, then top-p, min-p, temperature and a draw, in llama.cpp's order.

    seed: -1 or 4294967295 chooses one at random. temp <= 0 takes the best token. top_k <= 0, top_p 1 and min_p 0 switch
    a step off.
    ignore_eos: tokens that end the generation are never chosen. Values out of range raise UsageError naming the field.
    """

    seed: int = RANDOM_SEED
    temp: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        check_range("seed", self.seed, -1, MAX_SEED, "-1 chooses one at random")
        check_range("top_k", self.top_k, -1, None, "0 or -1 switches it off")
        check_range("top_p", self.top_p, 0.0, 1.0, "1 switches it off")
        check_range("min_p", self.min_p, 0.0, 1.0, "0 switches it off")
        if not math.isfinite(self.temp):
            raise UsageError(
                f"temp is {self.temp}, which is no finite number", "0 or less takes the best token at every step."
            )

    @property
    def greedy(self) -> bool:
        """Whether every step takes the best token and no draw happens."""
        return self.temp <= 0

    @property
    def random_seed(self) -> bool:
        """Whether the seed is to be chosen for us."""
        return self.seed in (RANDOM_SEED, MAX_SEED)


def check_range(name: str, value: float, low: float, high: float | None, hint: str) -> None:
    """Raises UsageError unless low <= value <= high; NaN never passes."""
    if value >= low and (high is None or value <= high):
        return
    wanted = f"at least {low}" if high is None else f"from {low} to {high}"
    raise UsageError(f"{name} is {value}; {wanted} is expected", f"{hint[0].upper()}{hint[1:]}.")


KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@dataclass(frozen=True)
class ContextParams:
    """What a context is made of; defaults are llama.cpp's.

    n_ctx: cells; 0 lets the context choose. n_batch: rows handed to decode at most; n_ubatch: rows computed in one pass
    at most. n_threads: 0 or -1 takes the cores there are. type_k, type_v: the types that keys and values are stored in.
    """

    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    type_k: str = "f16"
    type_v: str = "f16"

    def __post_init__(self) -> None:
        check_range("n_ctx", self.n_ctx, 0, None, "0 takes what the model was trained for, or what memory allows")
        check_range("n_batch", self.n_batch, 1, None, "the prompt is computed in chunks of so many tokens")
        check_range("n_ubatch", self.n_ubatch, 1, None, "so many tokens go through the model in one pass")
        check_range("n_threads", self.n_threads, -1, 1024, "0 or -1 takes the cores there are")
        for name, value in (("type_k", self.type_k), ("type_v", self.type_v)):
            if value not in KV_TYPES:
                raise UsageError(f"{name} is {value!r}; one of {', '.join(KV_TYPES)} is expected")
