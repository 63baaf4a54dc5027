"""What sequences hold, taken out of a cache and put back: chains to runs, parts and blocks in numbers of their own.

A block that several sequences lie in is there once, and so are columns that chains share. What no saved sequence holds
is left out: tokens that were removed, cells of others. Knows no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmkit.errors import LlmkitError
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.cell_bytes import without_cells
from llmkit.memory.chain import CELL, NEVER, POS, ROTATED, Chain, Columns, Part, Run
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.operations import needed_from
from llmkit.memory.sequence import Sequence as Handle

Parts = list[tuple[int, int, int]]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ChainRecord:
    """A chain: parts (run, start, stop) of a snapshot's runs; of each kind, how many first tokens have no cells.

    n_exact: how many first tokens hold what computing them in order gives.
    """

    parts: Parts
    gone: tuple[int, ...]
    n_exact: int


@dataclass(frozen=True)
class Snapshot:
    """Chains, and the runs they are parts of: int64 [CELL + kinds][n], cells in numbers of `blocks`, -1 for none.

    blocks: of each kind, which block of the pool each number stands for. used: which of their cells a chain holds.
    """

    runs: list[Columns]
    chains: list[ChainRecord]
    blocks: list[Columns]
    used: list[npt.NDArray[np.bool_]]


def take_snapshot(kv: KvCache, chains: Sequence[Chain]) -> Snapshot:
    """The chains as records. Numbers go by first use, so that equal contents give equal records wherever they lie."""
    spans = _spans(chains)
    numbers: dict[tuple[int, int], int] = {}
    runs, held, records = list[Columns](), list[npt.NDArray[np.bool_]](), list[ChainRecord]()
    for chain in chains:
        parts, before = Parts(), 0
        for part in chain.parts:
            span = next(s for s in spans[id(part.run)] if s[0] <= part.start < s[1])
            number = numbers.setdefault((id(part.run), span[0]), len(runs))
            if number == len(runs):
                runs.append(np.array(part.run.data[:, span[0] : span[1]]))
                held.append(np.zeros((len(kv.kinds), span[1] - span[0]), bool))
            start, stop = part.start - span[0], part.stop - span[0]
            for k, gone in enumerate(chain.gone):
                held[number][k, min(stop, start + max(0, gone - before)) : stop] = True
            parts.append((number, start, stop))
            before += stop - start
        records.append(ChainRecord(parts, chain.gone, chain.n_exact))
    blocks = [_blocks_in_order(kv.pools[k].n_blocks, chains, k) for k in range(len(kv.kinds))]
    used = [_renumber(kv.pools[k].n_blocks, blocks[k], k, runs, held) for k in range(len(kv.kinds))]
    return Snapshot(runs, records, blocks, used)


def _spans(chains: Iterable[Chain]) -> dict[int, list[tuple[int, int]]]:
    """Of each run, by its id, the stretches of columns that chains see, sorted and apart."""
    seen: dict[int, set[tuple[int, int]]] = {}
    for chain in chains:
        for part in chain.parts:
            seen.setdefault(id(part.run), set()).add((part.start, part.stop))
    merged: dict[int, list[tuple[int, int]]] = {}
    for run, ranges in seen.items():
        spans: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if spans and start <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(stop, spans[-1][1])
            else:
                spans.append((start, stop))
        merged[run] = spans
    return merged


def _blocks_in_order(n_blocks: int, chains: Iterable[Chain], k: int) -> Columns:
    """The blocks of kind k that chains lie in, each once, in order of the first token there."""
    seen = np.zeros(n_blocks, bool)
    found: list[Columns] = [np.empty(0, np.int64)]
    for chain in chains:
        numbers = chain.column(CELL + k)[chain.gone[k] :] // BLOCK_CELLS
        numbers = numbers[~seen[numbers]]
        if numbers.size:
            _, first = np.unique(numbers, return_index=True)
            found.append(numbers[np.sort(first)])
            seen[found[-1]] = True
    return np.concatenate(found)


def _renumber(
    n_blocks: int, blocks: Columns, k: int, runs: list[Columns], held: list[npt.NDArray[np.bool_]]
) -> npt.NDArray[np.bool_]:
    """Writes cells of kind k in the snapshot's numbers into `runs`; which cells are held, bool [blocks * 32]."""
    numbers = np.full(n_blocks, -1, np.int64)
    numbers[blocks] = np.arange(blocks.size)
    used = np.zeros(blocks.size * BLOCK_CELLS, bool)
    for run, mask in zip(runs, held, strict=True):
        cells = run[CELL + k]
        mine = mask[k]
        cells[~mine] = -1
        cells[mine] = numbers[cells[mine] // BLOCK_CELLS] * BLOCK_CELLS + cells[mine] % BLOCK_CELLS
        used[cells[mine]] = True
    return used


def block_bytes(kv: KvCache, snapshot: Snapshot, k: int) -> Iterator[Bytes]:
    """The bytes of each block of kind k; cells that no chain of the snapshot holds are zero."""
    for block, used in zip(snapshot.blocks[k].tolist(), snapshot.used[k].reshape(-1, BLOCK_CELLS), strict=True):
        data = kv.pools[k].view(block)
        yield data if used.all() else without_cells(kv.kinds[k].layout, data, used)


# -- putting back -------------------------------------------------------------------------------------------------


def make_chains(kv: KvCache, snapshot: Snapshot) -> list[Chain]:
    """Chains as the cache has them; each run becomes one of ours.

    `blocks` are numbers of the pools' blocks, -1 for those that no chain of the snapshot lies in.
    """
    runs = []
    for columns in snapshot.runs:
        rows = np.array(columns)
        for k, blocks in enumerate(snapshot.blocks):
            cells = rows[CELL + k]
            mine = cells >= 0
            numbers = blocks[cells[mine] // BLOCK_CELLS]
            cells[mine] = np.where(numbers < 0, -1, numbers * BLOCK_CELLS + cells[mine] % BLOCK_CELLS)
        runs.append(Run(rows))
    return [_chain(record, runs) for record in snapshot.chains]


def _chain(record: ChainRecord, runs: list[Run]) -> Chain:
    parts = tuple(Part(runs[number], start, stop) for number, start, stop in record.parts)
    chain = Chain(parts, record.gone)
    in_order = all(_is_sorted(chain.column(CELL + k)[gone:]) for k, gone in enumerate(record.gone))
    turned = bool((chain.column(POS) == chain.column(ROTATED)).all())
    n_exact = min(record.n_exact, _n_in_place(chain))
    return Chain(parts, record.gone, in_order, turned, n_exact if n_exact < chain.n else NEVER)


def _n_in_place(chain: Chain) -> int:
    """How many first tokens i have position i, a key rotated for it, and place i mod 32 of a block."""
    number = np.arange(chain.n)
    wrong = (chain.column(POS) != number) | (chain.column(ROTATED) != number)
    for k, gone in enumerate(chain.gone):
        wrong[gone:] |= (chain.column(CELL + k) % BLOCK_CELLS != number % BLOCK_CELLS)[gone:]
    return int(wrong.argmax()) if wrong.any() else chain.n


def _is_sorted(cells: Columns) -> bool:
    """Whether each block's cells lie together and in the order of their tokens."""
    blocks = cells // BLOCK_CELLS
    begins = np.flatnonzero(np.diff(blocks, prepend=-1))
    return np.unique(blocks[begins]).size == begins.size and bool((np.diff(cells)[np.diff(blocks) == 0] > 0).all())


def first_point(positions: Columns, gone: Sequence[int], windows: Sequence[int]) -> int:
    """The fewest tokens (0 apart) that a chain can be cut back to: where all that is seen next is still held."""
    first = 1
    for n_gone, window in zip(gone, windows, strict=True):
        if n_gone:  # the token behind the n-th sees none that is gone: pos[n - 1] + 2 - window > pos[n_gone - 1]
            least = positions[n_gone - 1] + window - 2
            first = max(first, int(np.searchsorted(positions, least, "right")) + 1)
    return min(first, positions.size)


def is_complete(chain: Chain, windows: Sequence[int]) -> bool:
    """Whether each kind holds what a coming token sees."""
    return all(not g or needed_from(chain, window) >= g for g, window in zip(chain.gone, windows, strict=True))


def put_in_place(kv: KvCache, chains: Mapping[Handle, Chain], taken: Sequence[Columns]) -> None:
    """Gives sequences their new chains, and drops the reference that taking each block made. All, or none of them."""
    before = {seq: seq.chain for seq in chains}
    try:
        with kv.counted():
            for seq, chain in chains.items():
                kv.replace(seq, chain)
            for pool, blocks in zip(kv.pools, taken, strict=True):
                pool.release(blocks)
    except LlmkitError:
        raise
    except BaseException:
        for seq, chain in before.items():
            seq.chain = chain
        kv.recount()
        raise
