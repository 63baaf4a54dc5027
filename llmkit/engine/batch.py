"""What is handed to `decode`: runs of new tokens, each for one sequence."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from llmkit.errors import UsageError

Wanted = Literal["none", "last", "all"]

_WANTED = get_args(Wanted)


@dataclass(frozen=True)
class Segment:
    """New tokens that continue a sequence, and of which of them the logits are wanted.

    Segments of the same sequence in one batch continue it in their order. No tokens, no logits: "last" of none is a
    UsageError.
    """

    seq: Any
    tokens: list[int]
    logits: Wanted

    def __post_init__(self) -> None:
        if self.logits not in _WANTED:
            raise UsageError(f"logits is {self.logits!r}; one of none, last, all is expected")
        if self.logits == "last" and len(self.tokens) == 0:
            raise UsageError("a segment without tokens has no last one", "ask for no logits of it")
