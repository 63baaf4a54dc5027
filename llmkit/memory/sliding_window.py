"""Dropping what no coming token will see: blocks of layers with a window, once they are behind it. Knows no model.

A batch that fails is taken back as a whole. So what a sequence lay in when the batch began is kept to its end. And one
token more than needed is kept: the last can always be removed, to compute it again for its logits.
"""

from __future__ import annotations

import numpy as np

from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL, Chain
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.operations import needed_from
from llmkit.memory.sequence import Sequence


def slide(kv: KvCache, seq: Sequence, before: Chain) -> None:
    """Takes the sequence out of blocks behind its windows. References that `before` has are kept until `drop_kept`."""
    chain = seq.chain
    if not kv.has_window:
        return
    gone = tuple(_n_gone(kv, chain, k) for k in range(len(kv.kinds)))
    if gone == chain.gone:
        return
    slid = Chain(chain.parts, gone, chain.sorted, chain.turned, chain.changed_from)
    left = [np.setdiff1d(chain.blocks(k), slid.blocks(k)) for k in range(len(gone))]
    kept = [np.intersect1d(blocks, before.blocks(k)) for k, blocks in enumerate(left)]
    seq.chain = slid
    kv.kept.append(kept)
    for k, pool in enumerate(kv.pools):
        pool.release(np.setdiff1d(left[k], kept[k]))


def drop_kept(kv: KvCache) -> None:
    """Drops the references that `slide` has kept: the batch is through."""
    kept, kv.kept = kv.kept, []
    for blocks in kept:
        for pool, numbers in zip(kv.pools, blocks, strict=True):
            pool.release(numbers)


def _n_gone(kv: KvCache, chain: Chain, k: int) -> int:
    """How many tokens, from the first on, lie in blocks of kind k that are behind the window as a whole."""
    window, gone = kv.kinds[k].window, chain.gone[k]
    if window == 0 or chain.n - gone < window + BLOCK_CELLS:
        return gone
    need = max(gone, needed_from(chain, window) - 1)
    if need >= chain.n:
        return chain.n
    first = max(gone, need - BLOCK_CELLS)
    blocks = chain.rows(first, need + 1)[CELL + k] // BLOCK_CELLS
    return max(gone, need - int((blocks[:-1] == blocks[-1]).sum()))
