"""Saving and loading what sequences hold: tokens, positions, keys and values of every layer, and what proves that they
go with a model and a context.

A state that is loaded gives the bits that going on would have given. Its blocks stay in the mapped file (a compressed
one is unpacked into the pool); all of it is checked before anything changes. Knows nothing of texts or options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from llmkit.engine.context import Context
from llmkit.engine.state.blocks import StateBlocks, regrouped
from llmkit.engine.state.info import Logits, StateInfo, state_info
from llmkit.engine.state.info import read_state_info as read_state_info
from llmkit.engine.state.info import verify_state as verify_state
from llmkit.engine.state.match import check_description, describe, place_of
from llmkit.errors import UsageError
from llmkit.files.state_errors import StateDoesNotFitError, StateError, StateSequenceError
from llmkit.files.state_file import StateFile, new_blocks, write_state
from llmkit.files.state_header import CELL, Header, KindRecord, SequenceRecord
from llmkit.memory.block_pool import BLOCK_CELLS, BlockPool
from llmkit.memory.chain import POS, Chain, Columns
from llmkit.memory.sequence import Sequence as Handle
from llmkit.memory.snapshot import (
    ChainRecord,
    Snapshot,
    block_bytes,
    first_point,
    make_chains,
    put_in_place,
    take_snapshot,
)

# -- saving -------------------------------------------------------------------------------------------------------


def save_state(
    ctx: Context,
    path: str | os.PathLike[str],
    sequences: Mapping[int, Handle] | Handle,
    *,
    metadata: Mapping[str, str] | None = None,
    logits: Mapping[int, Logits] | Logits | None = None,
    compress: bool = False,
) -> StateInfo:
    """Writes sequences (one alone gets the id 0) to a file, whole or not at all.

    logits: float32 [n_vocab] of the last token of each sequence that shall have them, so that who loads it can sample
    the next token without computing the last again. Errors: OutputError when the file cannot be written; UsageError for
    what is no sequence of this context, no id, or no text.
    """
    handles = {0: sequences} if isinstance(sequences, Handle) else dict(sequences)
    given = {0: logits} if isinstance(logits, np.ndarray) else dict(logits or {})
    texts = dict(metadata or {})
    _check_arguments(ctx, handles, given, texts)
    with ctx.alone():
        snapshot = take_snapshot(ctx.kv, [seq.chain for seq in handles.values()])
        kinds = [
            KindRecord(kind.window, len(kind.layers), kind.layout.block_bytes, new_blocks(blocks.size))
            for kind, blocks in zip(ctx.kv.kinds, snapshot.blocks, strict=True)
        ]
        records = [
            SequenceRecord(seq_id, chain.gone, chain.parts, chain.n_exact, seq_id in given)
            for seq_id, chain in zip(handles, snapshot.chains, strict=True)
        ]
        n_logits = ctx.model.config.n_vocab if given else 0
        header = Header(describe(ctx, texts), kinds, snapshot.runs, records, n_logits, compress)
        data = [block_bytes(ctx.kv, snapshot, k) for k in range(len(kinds))]
        write_state(path, header, data, [given[seq_id] for seq_id in handles if seq_id in given])
    return state_info(header, os.fspath(path), given)


def _check_arguments(ctx: Context, handles: Mapping[int, Handle], logits: Mapping[int, Logits], texts: object) -> None:
    for seq_id, seq in handles.items():
        if not 0 <= seq_id < 1 << 32:
            raise UsageError(f"sequence id {seq_id} cannot be saved", "give ids from 0 to 4294967295")
        if seq not in ctx.kv.sequences:
            raise UsageError("the sequence was freed, or belongs to another context", "take one of new_sequence()")
    for seq_id, row in logits.items():
        if seq_id not in handles or not handles[seq_id].n_tokens or row.shape != (ctx.model.config.n_vocab,):
            raise UsageError(f"logits are given for sequence {seq_id}, which has no such last token")
    _check_texts(texts)


def _check_texts(texts: object) -> None:
    if not isinstance(texts, dict) or any(not isinstance(t, str) for pair in texts.items() for t in pair):
        raise UsageError("a state's metadata are texts by name", "give a mapping of strings to strings")


# -- loading ------------------------------------------------------------------------------------------------------


def load_state(
    ctx: Context, path: str | os.PathLike[str], into: Handle | Mapping[int, Handle] | None = None
) -> StateInfo:
    """Loads sequences; what they held is replaced. A StateError's subclass, and nothing changed, when that cannot be.

    into: the handle for the only sequence of the file; or handles by the ids that the file has, not necessarily for all
    of them; without it every sequence goes to ctx.memory's of the same id.
    """
    with ctx.alone(), StateFile(path) as file:
        info = state_info(file.header, os.fspath(path), {})
        check_description(ctx, file.header, info)
        wanted = _wanted(ctx, info, into)
        snapshot = _snapshot(file.header, list(wanted))
        blocks, ours = StateBlocks(file), tuple(kind.layers for kind in ctx.kv.kinds)
        if info.layers != ours:
            sizes = [kind.blocks.size for kind in file.header.kinds]
            snapshot, sources = regrouped(snapshot, sizes, info.layers, ours, place_of(info))
            blocks = StateBlocks(file, sources)
        beside = _check_room(ctx, snapshot, wanted, info)
        file.verify(ctx.n_threads)
        _attach(ctx, blocks, snapshot, list(wanted.values()), beside)
        rows = {seq.id: file.logits(i) for i, seq in enumerate(file.header.sequences) if seq.id in wanted}
    if not file.header.n_with_logits:
        return info
    return replace(info, sequences=tuple(replace(seq, logits=rows.get(seq.id)) for seq in info.sequences))


def _wanted(ctx: Context, info: StateInfo, into: Handle | Mapping[int, Handle] | None) -> dict[int, Handle]:
    """Which sequences of the file go where."""
    ids = list(info.n_tokens)
    if isinstance(into, Handle):
        if len(ids) != 1:
            message = f"{place_of(info)}: holds {len(ids)} sequences where one is wanted"
            raise StateSequenceError(message, f"name those to load; there are {_listed(ids)}")
        into = {ids[0]: into}
    wanted = {i: ctx.memory.sequence(i) for i in ids} if into is None else dict(into)
    if missing := [i for i in wanted if i not in info.n_tokens]:
        raise StateSequenceError(f"{place_of(info)}: holds no sequence {missing[0]}", f"there are {_listed(ids)}")
    if len(set(wanted.values())) != len(wanted) or any(seq not in ctx.kv.sequences for seq in wanted.values()):
        raise UsageError(
            "each sequence to load needs a handle of this context that was not freed", "take one of new_sequence()"
        )
    return wanted


def _listed(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:20])) + (", ..." if len(ids) > 20 else "") if ids else "none"


def _snapshot(header: Header, wanted: list[int]) -> Snapshot:
    """The wanted sequences as records; `blocks` are the file's own numbers of those that they lie in."""
    by_id = {record.id: record for record in header.sequences}
    records = [by_id[i] for i in wanted]
    numbers = {run: n for n, run in enumerate(sorted({run for r in records for run, _, _ in r.parts}))}
    chains = [ChainRecord([(numbers[run], a, b) for run, a, b in r.parts], r.gone, r.n_exact) for r in records]
    blocks = []
    for k in range(len(header.kinds)):
        seen = np.zeros(header.kinds[k].blocks.size, bool)
        for record in records:
            seen[header.rows(record)[CELL + k, record.gone[k] :] // BLOCK_CELLS] = True
        blocks.append(np.flatnonzero(seen))
    return Snapshot([header.runs[run] for run in numbers], chains, blocks, [])


def _check_room(ctx: Context, snapshot: Snapshot, wanted: Mapping[int, Handle], info: StateInfo) -> bool:
    """StateDoesNotFitError unless all fits; whether it fits beside what the sequences hold now."""
    kv, place = ctx.kv, place_of(info)
    for seq in info.sequences:
        if seq.id in wanted and seq.n_tokens > ctx.n_ctx:
            message = f"{place}: {seq.n_tokens} tokens do not fit into a context of {ctx.n_ctx}"
            raise StateDoesNotFitError(message, "choose a larger context (-c)")
        if seq.id in wanted and 0 < kv.n_positions <= seq.pos_max:
            raise StateDoesNotFitError(
                f"{place}: position {seq.pos_max} does not exist: the model knows {kv.n_positions}"
            )
    beside = True
    for k, pool in enumerate(kv.pools):
        n = snapshot.blocks[k].size
        if n <= pool.n_free:
            continue
        beside = False
        held = np.zeros(pool.n_blocks, np.int32)
        for handle in wanted.values():
            held[handle.chain.blocks(k)] += 1
        own = np.flatnonzero(held)
        n_own = int((pool.n_refs_of(own) == held[own]).sum())
        if n > pool.n_free + n_own:
            message = f"{place}: {n} blocks of {BLOCK_CELLS} tokens are needed, {pool.n_free + n_own} are free"
            raise StateDoesNotFitError(message, "choose a larger context (-c), or end other sequences")
    return beside


def _attach(ctx: Context, blocks: StateBlocks, snapshot: Snapshot, handles: Sequence[Handle], beside: bool) -> None:
    """Puts the chains in place of what the sequences hold; these are emptied first where both have no room."""
    kv, empty = ctx.kv, Chain((), (0,) * len(ctx.kv.kinds))
    with kv.counted():
        staged = None
        if blocks.copies and not beside:  # so that nothing can fail once they are empty
            staged = [blocks.views(k, numbers) for k, numbers in enumerate(snapshot.blocks)]
        if not beside:
            for handle in handles:
                kv.replace(handle, empty)
        taken = list[Columns]()
        try:
            for k, numbers in enumerate(snapshot.blocks):
                views = blocks.views(k, numbers) if staged is None else staged[k]
                taken.append(_take(kv.pools[k], views, copies=blocks.copies))
        except StateError:
            for pool, mine in zip(kv.pools, taken, strict=False):
                pool.release(mine)
            raise
        ours = [np.full(blocks.n_blocks(k), -1, np.int64) for k in range(len(kv.kinds))]
        for k, numbers in enumerate(snapshot.blocks):
            ours[k][numbers] = taken[k]
        chains = make_chains(kv, Snapshot(snapshot.runs, snapshot.chains, ours, []))
        put_in_place(kv, dict(zip(handles, chains, strict=True)), taken)


def _take(pool: BlockPool, views: list[npt.NDArray[np.uint8]], *, copies: bool) -> Columns:
    """The pool's numbers for blocks: mapped where they lie, or copied into the arena."""
    if not copies:
        return np.array(pool.attach(views), np.int64)
    taken = pool.allocate(len(views))
    for block, data in zip(taken, views, strict=True):
        pool.view(block)[:] = data
    return np.array(taken, np.int64)


# -- going on -----------------------------------------------------------------------------------------------------


def cut_last(ctx: Context, seq: Handle) -> list[int]:
    """Takes tokens off a sequence's end that are to be decoded again, to have the logits of the last; these tokens.

    That is the last one; where a window no longer holds what it saw (a sequence that was cut back before), all of them.
    """
    n = seq.n_tokens
    keep = n - 1 if first_point(seq.chain.column(POS), seq.chain.gone, ctx.kv.windows) < n else 0
    tokens: list[int] = seq.tokens[keep:].tolist()
    with ctx.alone():
        ctx.kv.truncate(seq, keep)
    return tokens
