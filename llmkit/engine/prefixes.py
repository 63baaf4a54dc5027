"""What the scheduler needs of a prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Tree(Protocol):
    """What is needed of the prefix tree."""

    def match(self, tokens: Any, namespaces: Sequence[str]) -> Any: ...

    def attach(self, match: Any, seq: Any, n_tokens: int | None = None) -> int: ...

    def insert(self, seq: Any, namespace: str, n_tokens: int | None = None) -> int: ...

    def make_room(self, n_blocks: Sequence[int]) -> bool: ...

    def entries(self, namespace: str | None = None) -> list[Any]: ...

    def remove(self, id: int) -> None: ...
