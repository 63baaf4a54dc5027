"""What is handed to `decode`: runs of new tokens, each for one sequence."""

from dataclasses import dataclass
from typing import Any, Literal

Wanted = Literal["none", "last", "all"]


@dataclass(frozen=True)
class Segment:
    """New tokens that continue a sequence, and of which of them the logits are wanted."""

    seq: Any
    tokens: list[int]
    logits: Wanted
