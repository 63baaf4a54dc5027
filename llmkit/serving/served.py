"""What the routes share: the model that is served, its engine, its template, its settings.

Owns the record and whether it is there yet. Knows nothing of HTTP.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from llmkit.engine.scheduling.requests import Engine
from llmkit.params import SamplingParams
from llmkit.serving.auth import KeyRing
from llmkit.serving.settings import ServeSettings

if TYPE_CHECKING:
    from llmkit.engine.context import Context
    from llmkit.models.model import Model
    from llmkit.tokenizer import Tokenizer
    from llmkit.tokenizer.chat_template import ChatTemplate


class Grammars(Protocol):
    """Makes what a text may be from what a request says of it; LlmkitError for what says nothing sound."""

    def from_gbnf(self, text: str) -> Any: ...

    def from_json_schema(self, schema: dict[str, Any] | bool | str) -> Any: ...


@dataclass
class Served:
    """A model that answers. n_ctx: tokens of one text. sampling, stops: where a request says nothing."""

    model: Model
    tokenizer: Tokenizer
    ctx: Context
    engine: Engine
    template: ChatTemplate
    grammars: Grammars
    n_slots: int
    n_ctx: int
    name: str
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stops: tuple[str, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def longest_piece(self) -> int:
        """Bytes of the longest token."""
        return max(len(self.tokenizer.piece_bytes(id, special=True)) for id in range(self.tokenizer.n_vocab))


@dataclass
class ServerState:
    """From the start to the end: `served` is None while the model loads. draining: no request is taken in any more."""

    settings: ServeSettings
    served: Served | None = None
    draining: bool = False
    started: float = field(default_factory=time.time)
    keys: KeyRing = field(init=False)

    def __post_init__(self) -> None:
        self.keys = KeyRing(self.settings.api_keys)
