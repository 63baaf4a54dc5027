"""What the sequence operations make of chains: pure functions, chains in, a chain out. Knows no pools.

Ranges of positions are half-open, with p0 < 0 for the beginning and p1 < 0 for the end, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmkit.errors import RewindError, UsageError
from llmkit.memory.chain import NEVER, POS, Chain, Columns, Part, Run

MAX_POS = 1 << 31


def find_range(chain: Chain, p0: int, p1: int) -> tuple[int, int]:
    """Which tokens, first .. last, have positions in [p0, p1)."""
    first = chain.find(p0) if p0 > 0 else 0
    last = chain.find(p1) if p1 >= 0 else chain.n
    return first, max(first, last)


_Piece = tuple[tuple[Part, ...], tuple[int, ...]]


def _piece(chain: Chain, first: int, last: int) -> _Piece:
    """The parts of tokens first .. last, and how many of these have no cells, for each kind."""
    return chain.cut(first, last), tuple(min(max(gone - first, 0), last - first) for gone in chain.gone)


def _joined(pieces: list[_Piece], *, in_order: bool, turned: bool, changed_from: int) -> Chain:
    """One behind the other. Where a piece lacks cells, all before it count as gone too."""
    parts = tuple(part for piece, _ in pieces for part in piece)
    gone, offset = [0] * len(pieces[0][1]), 0
    for piece, missing in pieces:
        gone = [offset + m if m else g for g, m in zip(gone, missing, strict=True)]
        offset += sum(part.stop - part.start for part in piece)
    if not parts:
        return Chain((), tuple(gone))
    return Chain(parts, tuple(gone), in_order, turned, changed_from if changed_from < offset else NEVER)


def needed_from(chain: Chain, window: int) -> int:
    """The first token that one after the last will see through the window."""
    return chain.find(chain.pos_max + 2 - window) if window else 0


def _checked(chain: Chain, windows: tuple[int, ...]) -> Chain:
    """The chain; RewindError unless each kind still holds what a coming token sees."""
    for gone, window in zip(chain.gone, windows, strict=True):
        if gone and needed_from(chain, window) < gone:
            raise RewindError(
                f"the memory of layers with a window of {window} tokens no longer holds what this would need",
                "keep all tokens with --swa-full, or go on from a copy made earlier",
            )
    return chain


def without(chain: Chain, first: int, last: int, windows: tuple[int, ...]) -> Chain:
    """The chain without tokens first .. last; RewindError where it could not go on."""
    if first == last:
        return chain
    pieces = [_piece(chain, 0, first), _piece(chain, last, chain.n)]
    changed_from = chain.changed_from if last == chain.n else min(chain.changed_from, first)
    return _checked(_joined(pieces, in_order=chain.sorted, turned=chain.turned, changed_from=changed_from), windows)


def with_copy(target: Chain, source: Chain, p0: int, p1: int, windows: tuple[int, ...]) -> Chain:
    """`target` with its range of positions replaced by that of `source`; RewindError where it could not go on."""
    first, last = find_range(target, p0, p1)
    begin, end = find_range(source, p0, p1)
    if last - first == target.n and end - begin == source.n:
        return source
    pieces = [_piece(target, 0, first), _piece(source, begin, end), _piece(target, last, target.n)]
    alone = last - first == target.n
    turned = source.turned and (target.turned or alone)
    changed_from = min(target.changed_from, first)  # of tokens that were computed behind others nothing is promised
    if first == begin == 0:
        changed_from = min(source.changed_from, end)
    joined = _joined(pieces, in_order=source.sorted and alone, turned=turned, changed_from=changed_from)
    return _checked(joined, windows)


def with_positions(
    chain: Chain, p0: int, p1: int, change: Callable[[Columns], Columns], windows: tuple[int, ...]
) -> Chain:
    """The chain with the positions in [p0, p1) changed, in the new order; tokens whose position falls below 0 are gone.

    `change` must keep the order. UsageError for positions beyond 2^31, RewindError where the chain could not go on.
    """
    first, last = find_range(chain, p0, p1)
    if first == last:
        return chain
    rows = np.array(chain.rows(first, last))
    rows[POS] = change(rows[POS])
    if rows[POS, -1] >= MAX_POS:
        raise UsageError(f"a position would become {rows[POS, -1]}; they end before {MAX_POS}")
    n_below = int(np.searchsorted(rows[POS], 0))
    kept = rows[:, n_below:]
    parts = (Part(Run(kept), 0, kept.shape[1]),) if kept.size else ()
    missing = tuple(max(n - n_below, 0) for n in _piece(chain, first, last)[1])
    pieces = [_piece(chain, 0, first), (parts, missing), _piece(chain, last, chain.n)]
    changed_from = min(chain.changed_from, first)
    joined = _joined(pieces, in_order=chain.sorted, turned=False, changed_from=changed_from)
    return _checked(_in_order(joined), windows)


def _in_order(chain: Chain) -> Chain:
    """The same tokens in the order of their positions. All up to the last that a kind has lost count as gone."""
    if (np.diff(chain.column(POS)) >= 0).all():
        return chain
    rows = chain.rows(0, chain.n)
    order = np.argsort(rows[POS], kind="stable")
    place = np.argsort(order)
    gone = tuple(int(place[:g].max()) + 1 if g else 0 for g in chain.gone)
    changed_from = min(chain.changed_from, int(np.argmax(order != np.arange(order.size))))
    return Chain((Part(Run(rows[:, order]), 0, chain.n),), gone, False, chain.turned, changed_from)
