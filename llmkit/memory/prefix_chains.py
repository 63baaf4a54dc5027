"""Chains that a prefix tree keeps of a sequence at one moment: chains made of chains. Pure; owns no reference.

Only plain chains come here: token i has position i, holds what computing all before it in order gives, and lies at
place i mod 32 of a block. A chain is complete where a sequence can go on from its end: each window still has what the
next token sees.
"""

from __future__ import annotations

import numpy as np

from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL, POS, ROTATED, Chain, Columns, Part, Run

_SHORT = 64  # tokens: a part no longer than this, or than what follows it, is copied into that, so that parts stay few


def n_plain(chain: Chain, n: int) -> int:
    """How many of the first n tokens are a plain chain."""
    if not chain.sorted:
        return 0
    rows = chain.rows(0, min(n, chain.n_exact))
    count = np.arange(rows.shape[1])
    plain = (rows[POS] == count) & (rows[ROTATED] == count)
    for k, gone in enumerate(chain.gone):
        plain &= (rows[CELL + k] % BLOCK_CELLS == count % BLOCK_CELLS) | (count < gone)
    return count.size if plain.all() else int(plain.argmin())


def first_of_block(n: int) -> int:
    """The number of the first token in the block that token n lies in."""
    return n // BLOCK_CELLS * BLOCK_CELLS


def is_complete(chain: Chain, n: int, windows: tuple[int, ...]) -> bool:
    """Whether a sequence can go on from the first n tokens."""
    return all(not gone or gone <= n + 1 - window for gone, window in zip(chain.gone, windows, strict=True))


def _gone(chain: Chain, n: int, windows: tuple[int, ...]) -> tuple[int, ...]:
    """How many of the first n tokens need no cells, by kind: those behind the window, all where it is not complete.

    One token more than needed is kept, so that the last can be computed again.
    """
    if not is_complete(chain, n, windows):
        return tuple(n if window else 0 for window in windows)
    behind = [first_of_block(max(n - window, 0)) if window else 0 for window in windows]
    return tuple(max(gone, first) for gone, first in zip(chain.gone, behind, strict=True))


def beginning(chain: Chain, n: int) -> Chain:
    """The chain's first n tokens, where it is complete."""
    return chain if n == chain.n else Chain(chain.cut(0, n), chain.gone)


def grafted(old: Chain, n_old: int, new: Chain, n: int, windows: tuple[int, ...]) -> Chain:
    """The first n tokens of `new`, of which the first n_old have their cells from `old`, where that has them.

    A block that `old` has only begun is not used: its cells are new's, so that tokens of one block stay in one.
    Its last columns are a run of its own, which nobody writes behind (`own_bytes`).
    """
    gone = _gone(new, n, windows)
    base = n if n_old == n else first_of_block(n_old)
    lacking = [g for g, has in zip(gone, old.gone, strict=True) if has > g]
    first = min(base, *lacking) if lacking else base
    rows = np.array(new.rows(first, n))
    for k, g in enumerate(gone):
        if first < base and old.gone[k] <= g:
            rows[CELL + k, : base - first] = old.rows(first, base)[CELL + k]
    return Chain(_with_run(old.cut(0, first), rows), gone)


def own_bytes(chain: Chain) -> int:
    """Bytes of the last run of a chain's columns."""
    return chain.parts[-1].run.data.nbytes if chain.parts else 0


def with_tail(chain: Chain, first: int, rows: Columns) -> Chain:
    """The chain with other columns for its tokens from `first` on."""
    return Chain((*chain.cut(0, first), Part(Run.closed(rows), 0, rows.shape[1])), chain.gone)


def _with_run(parts: tuple[Part, ...], rows: Columns) -> tuple[Part, ...]:
    while parts and parts[-1].stop - parts[-1].start <= max(rows.shape[1], _SHORT):
        run, start, stop = parts[-1]
        rows, parts = np.concatenate([run.data[:, start:stop], rows], axis=1), parts[:-1]
    return (*parts, Part(Run.closed(rows), 0, rows.shape[1])) if rows.shape[1] else parts


def held_blocks(chain: Chain, start: int, windows: tuple[int, ...]) -> tuple[Columns, ...]:
    """The blocks of the tokens from `start` on, each once, by kind; with a window those of all that it holds.

    The block that token `start` lies in is among them as the chain has it: as a whole.
    """
    blocks = []
    for k, window in enumerate(windows):
        first = chain.gone[k] if window else first_of_block(start)
        cells = chain.tail(CELL + k, first) if first < chain.n else np.empty(0, np.int64)
        blocks.append(np.unique(cells // BLOCK_CELLS))
    return tuple(blocks)


def same_cells(a: Chain, b: Chain, n: int, k: int) -> bool:
    """Whether the first n tokens lie in the same cells of kind k, those that either has lost left aside."""
    first = max(a.gone[k], b.gone[k])
    return bool((a.column(CELL + k)[first:n] == b.column(CELL + k)[first:n]).all())


def repointed(chain: Chain, kept: Chain, windows: tuple[int, ...]) -> Chain:
    """A sequence's chain with its first tokens in the cells where `kept`, a snapshot of the same tokens, has them.

    All of the snapshot's tokens where the sequence ends there too, else those in blocks that it has filled.
    """
    whole = chain.n == kept.n
    n = kept.n if whole else first_of_block(kept.n)
    rows, gone = np.array(chain.rows(0, n)), list(chain.gone)
    for k, window in enumerate(windows):
        if window and whole and is_complete(kept, n, windows):
            gone[k] = max(gone[k], kept.gone[k])
        if kept.gone[k] <= gone[k]:
            rows[CELL + k] = kept.rows(0, n)[CELL + k]
    parts = (Part(Run.closed(rows), 0, n), *chain.cut(n, chain.n)) if n else chain.parts
    return Chain(parts, tuple(gone), chain.sorted, chain.turned, chain.changed_from)
