"""What is cached: the list of prefixes, dropping one, pinning one.

Owns the answers. Each key sees its own prefixes and the public ones, and changes only its own.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from llmkit.engine.scheduling.requests import PUBLIC
from llmkit.serving.errors import ApiError
from llmkit.serving.served import Served


async def list_prefixes(served: Served, namespace: str) -> dict[str, Any]:
    """GET /cache."""
    mine = {namespace, PUBLIC}

    def read(ctx: Any, tree: Any) -> list[Any]:
        return [entry for name in sorted(mine) for entry in tree.entries(name)]

    entries = await asyncio.wrap_future(served.engine.call(read))
    return {"prefixes": [_prefix_json(entry) for entry in entries]}


def _prefix_json(entry: Any) -> dict[str, Any]:
    return {
        "id": entry.id,
        "public": entry.namespace == PUBLIC,
        "n_tokens": entry.n_tokens,
        "bytes": entry.bytes,
        "n_sharers": entry.n_sharers,
        "hits": entry.hits,
        "idle_s": max(0.0, time.time() - entry.last_use),
        "pinned": entry.pinned,
        "priority": entry.priority,
    }


async def drop_prefix(served: Served, namespace: str, id: int) -> dict[str, Any]:
    """DELETE /cache/{id}; 404 for one that is not the key's own."""

    def drop(ctx: Any, tree: Any) -> None:
        _own(tree, namespace, id)
        tree.remove(id)

    await asyncio.wrap_future(served.engine.call(drop))
    return {"id": id, "removed": True}


async def pin_prefix(served: Served, namespace: str, id: int, pinned: bool) -> dict[str, Any]:
    """POST /cache/pin."""

    def pin(ctx: Any, tree: Any) -> None:
        _own(tree, namespace, id)
        if pinned:
            tree.pin(id)
        else:
            tree.unpin(id)

    await asyncio.wrap_future(served.engine.call(pin))
    return {"id": id, "pinned": pinned}


def _own(tree: Any, namespace: str, id: int) -> None:
    if not any(entry.id == id for entry in tree.entries(namespace)):
        raise ApiError("not_found_error", f"there is no cached prefix {id}")
