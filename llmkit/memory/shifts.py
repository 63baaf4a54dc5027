"""Turning keys whose position has changed. An operation changes positions alone; the keys follow before they are read.

Each token knows the position its key is rotated for, so that several changes become one turn, by the difference. A turn
happens in cells that are the sequence's own: what it shares is copied first, and other sequences never notice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL, POS, ROTATED, Chain, Columns, Part, Run
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.sequence import Sequence

# Turns keys: positions by which, int64 [n]; cells int64 [kinds][n], -1 where there is none; addresses of the n numbers
# that say what keys are rotated for, which it changes together with the keys.
Turn = Callable[[Columns, Columns, Columns], None]


def settle(kv: KvCache, seq: Sequence, turn: Turn | None) -> None:
    """Turns the keys of a sequence that are rotated for other positions than theirs; without `turn` none ever need it.

    ContextFullError, and nothing changed, when there is no room to copy what is shared.
    """
    if seq.chain.turned:
        return
    if turn is not None and (seq.chain.column(POS) != seq.chain.column(ROTATED)).any():
        first, run = _own_cells(kv, seq)
        moved = np.flatnonzero(run.data[POS, : run.n] != run.data[ROTATED, : run.n])
        cells = run.data[CELL:, moved]
        for k, gone in enumerate(seq.chain.gone):
            cells[k, moved < gone - first] = -1
        rotated = run.data[ROTATED].ctypes.data + moved * run.data.itemsize
        turn(run.data[POS, moved] - run.data[ROTATED, moved], cells, rotated)
    chain = seq.chain
    seq.chain = Chain(chain.parts, chain.gone, chain.sorted, turned=True, changed_from=chain.changed_from)


def _own_cells(kv: KvCache, seq: Sequence) -> tuple[int, Run]:
    """Puts all tokens that are to be turned into a run, and their cells into blocks, that nobody shares.

    Gives how many tokens come before that run, and the run.
    """
    chain = seq.chain
    rows = np.array(chain.rows(0, chain.n))
    moved = rows[POS] != rows[ROTATED]
    shared = [_shared_blocks(kv, k, rows[CELL + k, moved & _held(chain, k)]) for k in range(len(kv.kinds))]
    for pool, blocks in zip(kv.pools, shared, strict=True):
        pool.check_room(blocks.size)
    taken = []
    for k, (pool, blocks) in enumerate(zip(kv.pools, shared, strict=True)):
        taken.append(np.array(pool.allocate(blocks.size), np.int64))
        pool.copy(blocks, taken[k])
        moved |= _move_cells(rows[CELL + k], _held(chain, k), blocks, taken[k])
        pool.make_writable(np.unique(rows[CELL + k, moved & _held(chain, k)] // BLOCK_CELLS))
    changed = np.flatnonzero(moved)
    first, last = int(changed[0]), int(changed[-1]) + 1
    run = Run(rows[:, first:last])
    parts = (*chain.cut(0, first), Part(run, 0, last - first), *chain.cut(last, chain.n))
    kv.replace(seq, Chain(parts, chain.gone, chain.sorted, False, chain.changed_from))
    for pool, blocks in zip(kv.pools, taken, strict=True):
        pool.release(blocks)
    return first, run


def _held(chain: Chain, k: int) -> npt.NDArray[np.bool_]:
    """Which tokens have a cell of kind k."""
    return np.arange(chain.n) >= chain.gone[k]


def _shared_blocks(kv: KvCache, k: int, cells: Columns) -> Columns:
    """The blocks of these cells that other sequences lie in too, sorted."""
    blocks = np.unique(cells // BLOCK_CELLS)
    return blocks[kv.pools[k].n_refs_of(blocks) > 1]


def _move_cells(
    cells: Columns, held: npt.NDArray[np.bool_], blocks: Columns, targets: Columns
) -> npt.NDArray[np.bool_]:
    """Changes cells in `blocks` to the same places in `targets`; which ones."""
    inside = held & np.isin(cells // BLOCK_CELLS, blocks)
    number, place = np.divmod(cells[inside], BLOCK_CELLS)
    cells[inside] = targets[np.searchsorted(blocks, number)] * BLOCK_CELLS + place
    return inside
