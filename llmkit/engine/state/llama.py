"""Sequences to llama.cpp's state files and from them. The bits of keys and values stay; only their order changes.

What llama.cpp computed are other bits than ours would be, so what goes on from its file is near what it would say, and
no state of ours: such a file has no fingerprint, no numerics id and no checksum. Whether it goes with the model, only
its sizes and types can tell.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from llmkit.engine.context import Context
from llmkit.errors import UnsupportedError
from llmkit.files.gguf_cursor import shown
from llmkit.files.llama_state import LlamaCells, LlamaLayer, LlamaState, read_llama_state, write_llama_state
from llmkit.files.state_errors import (
    StateDamagedError,
    StateDoesNotFitError,
    StateKvTypeError,
    StateModelError,
    StateSequenceError,
    StateWindowError,
)
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL, NEVER, POS, Chain, Columns, Part, Run
from llmkit.memory.ggml_cells import Bytes, from_rows, row_bytes, to_rows
from llmkit.memory.kv_layout import KvLayout
from llmkit.memory.sequence import Sequence as Handle
from llmkit.memory.snapshot import is_complete, put_in_place

# -- to llama.cpp -------------------------------------------------------------------------------------------------


def write_llama(
    ctx: Context, path: str | os.PathLike[str], seq: Handle, *, session: bool, tokens_after: Sequence[int] = ()
) -> int:
    """Writes a sequence as a sequence file, or a session file (where it has the id 0); bytes.

    tokens_after: ids behind what is computed, as a session of llama-completion has the last one. UnsupportedError where
    llama.cpp's file would need what we do not have; OutputError when the file cannot be written.
    """
    _check_supported(ctx)
    ctx.memory.settle(seq)
    with ctx.alone():
        cells = [_cells_of(ctx, seq.chain, layers) for layers in _sections(ctx)]
        tokens = [*seq.tokens.tolist(), *tokens_after]
        return write_llama_state(path, LlamaState(session, tokens, cells, ctx.model.arch))


def _check_supported(ctx: Context) -> None:
    if ctx.model.config.multi_rope:
        raise UnsupportedError("llama.cpp's files of models with M-RoPE are not supported", "use llmkit's own format")


def _sections(ctx: Context) -> list[tuple[int, ...]]:
    """The layers of each memory that llama.cpp has for the model: with windows, those without and those with one."""
    windows = ctx.model.config.windows
    full = tuple(i for i, window in enumerate(windows) if not window)
    return [full, tuple(i for i, window in enumerate(windows) if window)] if any(windows) else [full]


def _place(ctx: Context, layer: int) -> tuple[int, int]:
    """The kind of memory that has a layer, and the layer's place in its blocks."""
    return next((k, kind.layers.index(layer)) for k, kind in enumerate(ctx.kv.kinds) if layer in kind.layers)


def _cells_of(ctx: Context, chain: Chain, layers: tuple[int, ...]) -> LlamaCells:
    """The cells of one memory, in order of position; of a window what the last token saw, as far as it is there."""
    layout, found, data = ctx.kv.layout, list[LlamaLayer](), dict[int, tuple[Bytes, Columns]]()
    window = max((ctx.model.config.windows[i] for i in layers), default=0)
    first = chain.find(chain.pos_max + 1 - window) if window else 0
    first = max([first, *(chain.gone[_place(ctx, i)[0]] for i in layers)])
    for layer in layers:
        k, place = _place(ctx, layer)
        if k not in data:
            data[k] = _data_of(ctx, chain, k, first)
        blocks, rows = data[k]
        k_at, v_at = layout.k_offset(place), layout.v_offset(place)
        keys = to_rows(layout.type_k, blocks[:, k_at:v_at], layout.n_head_kv, layout.head_dim, key=True)
        values = blocks[:, v_at : v_at + layout.v_bytes]
        values = to_rows(layout.type_v, values, layout.n_head_kv, layout.head_dim, key=False)
        found.append(LlamaLayer(layout.type_k, layout.type_v, keys[rows], values[rows]))
    positions = chain.column(POS)[first:]
    return LlamaCells(positions, [(0,)] * positions.size, found, layout.n_rot_k, layout.n_rot_v)


def _data_of(ctx: Context, chain: Chain, k: int, first: int) -> tuple[Bytes, Columns]:
    """The blocks of a kind that tokens lie in from `first` on, and which row of these each token is."""
    cells = chain.column(CELL + k)[first:]
    blocks = np.unique(cells // BLOCK_CELLS)
    data = [ctx.kv.pools[k].view(block) for block in blocks.tolist()]
    rows = np.searchsorted(blocks, cells // BLOCK_CELLS) * BLOCK_CELLS + cells % BLOCK_CELLS
    return np.array(data).reshape(blocks.size, ctx.kv.kinds[k].layout.block_bytes), rows


# -- from llama.cpp -----------------------------------------------------------------------------------------------


def read_llama(
    ctx: Context, path: str | os.PathLike[str], into: Handle, *, seq_id: int | None = None, trusted: bool = False
) -> list[int]:
    """Loads a sequence from a sequence or session file; the tokens that it names behind those that are computed.

    seq_id: which one of a session file that holds several. What `into` held is replaced; a StateError's subclass, and
    nothing changed, when that cannot be. Positions must be 0, 1, 2 ... without a hole. trusted: the numbers count as
    computed here, so that the text can be kept as a prefix; else they do not, since llama.cpp's last bits differ.
    """
    _check_supported(ctx)
    place = shown(path, 300)
    state = read_llama_state(path)
    n_vocab = ctx.model.config.n_vocab
    if state.arch and state.arch != ctx.model.arch:
        raise StateModelError(f"{place}: saved with another architecture: {shown(state.arch)}, not {ctx.model.arch}")
    if any(token >= n_vocab for token in state.tokens):
        raise StateModelError(f"{place}: a token that is not in the vocabulary of {n_vocab}", "give the model's own -m")
    if len(state.cells) != len(_sections(ctx)):
        message = f"{place}: memory in {len(state.cells)} parts; llama.cpp's for this model is in {len(_sections(ctx))}"
        raise StateModelError(message, "give -m with the model it was saved with")
    with ctx.alone():
        chosen = [_chosen(cells, seq_id, place) for cells in state.cells]
        n = max(int(cells.positions[places[-1]]) + 1 if places.size else 0 for cells, places in chosen)
        gone = _check(ctx, state, chosen, n, place)
        _put(ctx, into, state.tokens[:n], gone, chosen, NEVER if trusted else 0)
    return state.tokens[n:]


_Chosen = tuple[LlamaCells, Columns]


def _chosen(cells: LlamaCells, seq_id: int | None, place: str) -> _Chosen:
    """Which cells are the sequence's, in order of position, from the first behind the last hole on."""
    ids = sorted({i for cell in cells.sequences for i in cell})
    if seq_id is None and len(ids) > 1:
        message = f"{place}: holds {len(ids)} sequences where one is wanted"
        raise StateSequenceError(message, f"name the one to load; there are {', '.join(map(str, ids))}")
    if seq_id is not None and ids and seq_id not in ids:
        raise StateSequenceError(f"{place}: holds no sequence {seq_id}", f"there are {', '.join(map(str, ids))}")
    mine = np.array([seq_id is None or seq_id in cell for cell in cells.sequences], bool)
    places = np.flatnonzero(mine)
    places = places[np.argsort(cells.positions[places], kind="stable")]
    holes = np.flatnonzero(np.diff(cells.positions[places]) != 1)
    return cells, places[holes[-1] + 1 :] if holes.size else places


def _check(ctx: Context, state: LlamaState, chosen: list[_Chosen], n: int, place: str) -> tuple[int, ...]:
    """All that is compared before anything changes; how many first tokens each of our kinds will lack."""
    if n == 0:
        raise StateSequenceError(f"{place}: holds no tokens", "save it when there are some")
    if n > len(state.tokens):
        raise StateDamagedError(f"{place}: {n} cells, but only {len(state.tokens)} tokens", "save it again")
    if n > ctx.n_ctx:
        message = f"{place}: {n} tokens do not fit into a context of {ctx.n_ctx}"
        raise StateDoesNotFitError(message, "choose a larger context (-c)")
    firsts = []
    for layers, (cells, places) in zip(_sections(ctx), chosen, strict=True):
        firsts.append(n - places.size)
        whole = not any(ctx.model.config.windows[i] for i in layers)
        if firsts[-1] < 0 or (whole and firsts[-1]) or (cells.positions[places] != np.arange(firsts[-1], n)).any():
            message = f"{place}: the tokens do not have the positions 0 to {n - 1} without a hole"
            raise StateSequenceError(message, "a text that was shifted or cut cannot be read: save it before that")
        _check_layers(ctx.kv.layout, cells, len(layers), place)
    gone = []
    for k, kind in enumerate(ctx.kv.kinds):
        gone.append(
            max(first for first, layers in zip(firsts, _sections(ctx), strict=True) if {*layers} & {*kind.layers})
        )
        if gone[k] and not kind.window:
            message = f"{place}: the first {gone[k]} tokens are not there for layers that keep all here"
            raise StateWindowError(message, "give a context larger than the window, and no --swa-full")
        n_blocks = -(-n // BLOCK_CELLS) - gone[k] // BLOCK_CELLS
        if n_blocks > ctx.kv.pools[k].n_free:
            message = (
                f"{place}: {n_blocks} blocks of {BLOCK_CELLS} tokens are needed, {ctx.kv.pools[k].n_free} are free"
            )
            raise StateDoesNotFitError(message, "choose a larger context (-c), or end other sequences")
    return tuple(gone)


def _check_layers(layout: KvLayout, cells: LlamaCells, n_layers: int, place: str) -> None:
    if len(cells.layers) != n_layers:
        message = f"{place}: a memory of {len(cells.layers)} layers; the model has {n_layers} of this kind"
        raise StateModelError(message, "give -m with the model it was saved with")
    if (cells.n_rot_k, cells.n_rot_v) != (layout.n_rot_k, layout.n_rot_v):
        message = f"{place}: keys and values are rotated {cells.n_rot_k} and {cells.n_rot_v} at a time; here they are "
        message += f"{layout.n_rot_k} and {layout.n_rot_v}"
        raise StateKvTypeError(message, "LLAMA_ATTN_ROT_DISABLE must be set on both sides, or on neither")
    n_values = layout.n_head_kv * layout.head_dim
    for layer in cells.layers:
        for what, option, there, here, rows in (
            ("keys", "-ctk", layer.type_k, layout.type_k, layer.k),
            ("values", "-ctv", layer.type_v, layout.type_v, layer.v),
        ):
            if there != here:
                raise StateKvTypeError(
                    f"{place}: {what} are {there}; this context has {here}", f"give {option} {there}"
                )
            if rows.shape[1] != row_bytes(here, n_values):
                message = f"{place}: rows of {rows.shape[1]} bytes of {what}; the model has {row_bytes(here, n_values)}"
                raise StateModelError(message, "give -m with the model it was saved with")


def _put(
    ctx: Context, into: Handle, tokens: list[int], gone: tuple[int, ...], chosen: list[_Chosen], changed_from: int
) -> None:
    """Writes the rows into free blocks, and gives the sequence its chain."""
    kv, n = ctx.kv, len(tokens)
    rows = np.empty((CELL + len(kv.kinds), n), np.int64)
    rows[0], rows[POS:CELL] = tokens, np.arange(n)
    with kv.counted():
        taken = []
        for k, pool in enumerate(kv.pools):
            begin = gone[k] // BLOCK_CELLS * BLOCK_CELLS
            taken.append(np.array(pool.allocate(-(-(n - begin) // BLOCK_CELLS)), np.int64))
            index = np.arange(n) - begin
            numbers = taken[k][np.maximum(index, 0) // BLOCK_CELLS] * BLOCK_CELLS + index % BLOCK_CELLS
            rows[CELL + k] = np.where(index < 0, -1, numbers)
            _fill(ctx, k, taken[k], chosen, gone[k])
        chain = Chain((Part(Run(rows), 0, n),), gone, changed_from=changed_from)
        if not is_complete(chain, kv.windows):
            for pool, blocks in zip(kv.pools, taken, strict=True):
                pool.release(blocks)
            raise StateWindowError("the file lacks what the next token would see through a window", "save it again")
        put_in_place(kv, {into: chain}, taken)


def _fill(ctx: Context, k: int, blocks: Columns, chosen: list[_Chosen], gone: int) -> None:
    """Writes the rows of a kind's layers from token `gone` on into blocks; what is left over is zero."""
    layout, pool, skipped = ctx.kv.kinds[k].layout, ctx.kv.pools[k], gone % BLOCK_CELLS
    data = np.empty((blocks.size, layout.block_bytes), np.uint8)
    for place, layer in enumerate(ctx.kv.kinds[k].layers):
        section, index = next((s, found.index(layer)) for s, found in enumerate(_sections(ctx)) if layer in found)
        cells, places = chosen[section]
        places = places[places.size - (int(cells.positions[places[-1]]) + 1 - gone) :]
        k_at, v_at = layout.k_offset(place), layout.v_offset(place)
        theirs = cells.layers[index]
        keys, values = (_spread(rows[places], blocks.size, skipped) for rows in (theirs.k, theirs.v))
        data[:, k_at:v_at] = from_rows(layout.type_k, keys, layout.n_head_kv, layout.head_dim, key=True)
        cells_v = from_rows(layout.type_v, values, layout.n_head_kv, layout.v_dim, key=False)
        data[:, v_at : v_at + layout.v_bytes] = cells_v
    for block, row in zip(blocks.tolist(), data, strict=True):
        pool.view(block)[:] = row


def _spread(rows: Bytes, n_blocks: int, skipped: int) -> Bytes:
    """Rows of whole blocks, zero where there is none."""
    out = np.zeros((n_blocks * BLOCK_CELLS, rows.shape[1]), np.uint8)
    out[skipped : skipped + len(rows)] = rows
    return out
