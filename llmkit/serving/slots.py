"""Slots: what they are doing, and saving, restoring and erasing what one holds.

Owns the answers, which are llama.cpp's, and what a slot holds after a restore. The work is done by the engine's thread
between two steps. A slot belongs to the key that used it last: another key's requests do not reach what it holds.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llmkit.engine.scheduling.requests import PUBLIC, SlotInfo, SlotState
from llmkit.files.state_header import LLAMA_SEQUENCE, LLAMA_SESSION, MAGIC
from llmkit.serving.bodies import SlotFile
from llmkit.serving.completion import Look, generation_settings
from llmkit.serving.errors import ApiError, bad_request, busy, not_supported
from llmkit.serving.served import Served
from llmkit.serving.slot_files import check_readable, check_writable, slot_path

NAMESPACE = "namespace"
FORMATS = ("llmkit", "ggsq")


@dataclass(frozen=True)
class Held:
    """What a slot holds: the tokens of a text and whose they are. task: the slot's last one when this was so."""

    task: int
    namespace: str
    tokens: tuple[int, ...]


def slot_json(slot: SlotInfo) -> dict[str, Any]:
    """An item of GET /slots. `state` is ours: idle, waiting, prompt or generating."""
    item: dict[str, Any] = {
        "id": slot.id,
        "n_ctx": slot.n_ctx,
        "speculative": False,
        "is_processing": slot.is_processing,
        "state": str(slot.state),
    }
    if slot.request is None:
        return item
    settings = generation_settings(slot.request, Look())
    hidden = ("stop", "logit_bias", "grammar", "dry_sequence_breakers")
    return {
        **item,
        "id_task": slot.id_task,
        "n_prompt_tokens": slot.n_prompt,
        "n_prompt_tokens_processed": slot.n_computed,
        "n_prompt_tokens_cache": slot.n_cached,
        "params": {name: value for name, value in settings.items() if name not in hidden},
        "next_token": [
            {
                "has_next_token": slot.state is SlotState.GENERATING,
                "has_new_line": slot.has_new_line,
                "n_remain": slot.n_remain,
                "n_decoded": slot.n_decoded,
            }
        ],
    }


class Slots:
    """What is done to slots, for one server. folder: where slot files lie, or None."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._held: dict[int, Held] = {}

    async def act(self, served: Served, id: str, action: str, body: SlotFile, namespace: str) -> dict[str, Any]:
        """POST /slots/{id}?action=...; 501 without a folder."""
        if self._folder is None:
            raise not_supported("This server does not support slots action. Start it with `--slot-save-path`")
        if not (id.isascii() and id.isdecimal()) or int(id[:10]) >= served.n_slots:
            raise bad_request("Invalid slot ID")
        actions: dict[str, Callable[..., Any]] = {"save": self._save, "restore": self._restore, "erase": self._erase}
        if action not in actions:
            raise bad_request("Invalid action")
        slot = served.engine.slots()[int(id)]
        if slot.is_processing:
            raise busy(f"slot {id} is busy")
        result: dict[str, Any] = await actions[action](served, slot, body, namespace)
        return result

    def held(self, slot: SlotInfo) -> Held:
        """What the slot holds: the text of its last request, unless something was restored or erased since."""
        changed = self._held.get(slot.id)
        if changed is not None and changed.task == slot.id_task:
            return changed
        if slot.request is None:
            return Held(slot.id_task, PUBLIC, ())
        return Held(slot.id_task, slot.request.namespace, (slot.prompt_ids + slot.ids)[: slot.n_past])

    def _held_by(self, slot: SlotInfo, namespace: str) -> Held:
        held = self.held(slot)
        if held.tokens and held.namespace != namespace:
            raise ApiError("permission_error", f"slot {slot.id} was used with another key")
        return held

    async def _save(self, served: Served, slot: SlotInfo, body: SlotFile, namespace: str) -> dict[str, Any]:
        assert self._folder is not None
        path = slot_path(self._folder, body.filename)
        check_writable(path, (MAGIC, LLAMA_SEQUENCE, LLAMA_SESSION))
        held = self._held_by(slot, namespace)
        if not held.tokens:
            raise bad_request(f"slot {slot.id} holds nothing to save")
        began = time.perf_counter()
        write = _writer(served, path, body.format or "llmkit", held)
        n_saved = await asyncio.wrap_future(served.engine.call(write))
        return {
            "id_slot": slot.id,
            "filename": body.filename,
            "n_saved": n_saved,
            "n_written": os.path.getsize(path),
            "timings": {"save_ms": (time.perf_counter() - began) * 1e3},
        }

    async def _restore(self, served: Served, slot: SlotInfo, body: SlotFile, namespace: str) -> dict[str, Any]:
        assert self._folder is not None
        path = slot_path(self._folder, body.filename)
        check_readable(path)
        began = time.perf_counter()
        tokens = await asyncio.wrap_future(served.engine.call(lambda ctx, tree: _load(ctx, tree, path, namespace)))
        self._held[slot.id] = Held(slot.id_task, namespace, tokens)
        return {
            "id_slot": slot.id,
            "filename": body.filename,
            "n_restored": len(tokens),
            "n_read": os.path.getsize(path),
            "timings": {"restore_ms": (time.perf_counter() - began) * 1e3},
        }

    async def _erase(self, served: Served, slot: SlotInfo, body: SlotFile, namespace: str) -> dict[str, Any]:
        held = self._held_by(slot, namespace)
        if held.tokens:
            await asyncio.wrap_future(served.engine.call(lambda ctx, tree: _forget(ctx, tree, held)))
        self._held[slot.id] = Held(slot.id_task, namespace, ())
        return {"id_slot": slot.id, "n_erased": len(held.tokens)}


def _writer(served: Served, path: Path, format: str, held: Held) -> Callable[[Any, Any], int]:
    """What writes the tokens' state in a format; called in the engine's thread it gives the number of tokens."""
    from llmkit.engine.state.llama import write_llama
    from llmkit.engine.state.save_load import save_state

    if format not in FORMATS:
        raise bad_request(f"Field 'format': it can be {' or '.join(FORMATS)}")

    def write(ctx: Any, tree: Any) -> int:
        seq = ctx.new_sequence()
        try:
            n = _attach(tree, seq, held)
            if n == 0:
                raise bad_request("what the slot held has left the cache: there is nothing to save")
            if format == "llmkit":
                save_state(ctx, path, seq, metadata={NAMESPACE: held.namespace, "model": served.name})
            else:
                write_llama(ctx, path, seq, session=False)
            return n
        finally:
            ctx.free_sequence(seq)

    return write


def _attach(tree: Any, seq: Any, held: Held) -> int:
    """Gives an empty sequence what is cached of the tokens; how many."""
    match = tree.match(list(held.tokens), [held.namespace, PUBLIC])
    return int(tree.attach(match, seq)) if match.n_tokens else 0


def _load(ctx: Any, tree: Any, path: Path, namespace: str) -> tuple[int, ...]:
    """Puts a file's text into the cache, under a namespace that must be the one it was saved from; its tokens.

    llama.cpp's files name none: they are for servers without keys, and their numbers count as computed here.
    """
    from llmkit.engine.state.llama import read_llama
    from llmkit.engine.state.save_load import load_state, read_state_info
    from llmkit.files.llama_state import llama_kind
    from llmkit.files.state_errors import StateDoesNotFitError

    foreign = llama_kind(path) is not None
    info = None if foreign else read_state_info(path)
    if (PUBLIC if info is None else info.metadata.get(NAMESPACE, PUBLIC)) != namespace:
        raise ApiError("permission_error", "the slot file was saved with another key, or without one")
    read: Callable[..., Any] = partial(read_llama, trusted=True) if foreign else load_state
    seq = ctx.new_sequence()
    try:
        try:
            read(ctx, path, seq)
        except StateDoesNotFitError:
            n_bytes = path.stat().st_size
            most = [n_bytes // pool.block_bytes + 1 for pool in ctx.kv.pools]  # a file holds little else than rows
            if not tree.make_room(most if info is None else list(info.n_blocks)):
                raise
            read(ctx, path, seq)
        tree.insert(seq, namespace)
        tokens = tuple(int(token) for token in seq.tokens)
        n_kept = int(tree.match(list(tokens), [namespace]).n_tokens)
        if n_kept == 0:
            raise bad_request("Unable to restore slot: nothing of the file could be kept in the cache")
        return tokens[:n_kept]
    finally:
        ctx.free_sequence(seq)


def _forget(ctx: Any, tree: Any, held: Held) -> None:
    """Takes a text out of the cache; what others share of it stays theirs."""
    seq = ctx.new_sequence()
    try:
        match = tree.match(list(held.tokens), [held.namespace])
        if match.n_tokens:
            tree.attach(match, seq)
            tree.remove(tree.insert(seq, held.namespace))
    finally:
        ctx.free_sequence(seq)
