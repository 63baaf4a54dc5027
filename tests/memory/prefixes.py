"""A cache without a model whose cells hold what a model would have put there, and a prefix tree on it.

A cell's content is a number made of all tokens up to its own, so that a cell at a wrong place, or one that was written
over or freed, shows. Blocks are full of NaN when they are free (LLMKIT_POISON).
"""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL
from llmkit.memory.kinds import memory_layout
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.kv_layout import KvLayout
from llmkit.memory.memory import Memory
from llmkit.memory.prefix_tree import PrefixTree
from llmkit.memory.sequence import Sequence
from llmkit.memory.sliding_window import drop_kept, slide

Ids = list[int]


POWERS = np.cumprod(np.full(1 << 16, 6364136223846793005, np.uint64))


def contents(ids: Ids) -> NDArray[np.uint64]:
    """What the cells of these tokens hold, uint64 [n]."""
    return np.cumsum(POWERS[: len(ids)] * (np.array(ids, np.uint64) + np.uint64(1)), dtype=np.uint64)


def turn(by: Any, cells: Any, rotated: Any) -> None:
    """As KeyShift.turn does, but that the keys stay what they are."""
    for n, address in zip(by.tolist(), rotated.tolist(), strict=True):
        ctypes.c_int64.from_address(address).value += n


class Cache:
    """One layer that sees all, and one with a window where that is given."""

    def __init__(self, n_ctx: int = 2048, window: int = 0, n_cells: int = 0, max_bytes: int = 0) -> None:
        layout = memory_layout((0, window), KvLayout(2, 1, 16, "f16", "f16"), n_ctx, swa_full=window == 0)
        self.kv = KvCache(layout, n_ctx, 0, n_cells)
        self.windows = self.kv.windows
        self.memory = Memory(self.kv, turn, can_shift=True)
        self.tree = PrefixTree(self.kv, max_bytes=max_bytes)

    def cells(self, k: int) -> NDArray[np.uint64]:
        """The first number in each cell of a kind, uint64 [n_cells]."""
        pool = self.kv.pools[k]
        return (
            pool.data[: pool.n_blocks * pool.block_bytes].view(np.uint64).reshape(pool.n_blocks * BLOCK_CELLS, -1)[:, 0]
        )

    def append(self, seq: Sequence, ids: Ids, chunk: int = 10**9) -> None:
        """As `decode` does: room is asked for, cells are given and written, windows slide."""
        for first in range(0, len(ids), chunk):
            self._append(seq, ids[first : first + chunk])

    def _append(self, seq: Sequence, ids: Ids) -> None:
        before, n = seq.chain, seq.n_tokens
        self.kv.check_room({seq: len(ids)})
        self.kv.append(seq, np.array(ids, np.int32))
        new = contents(seq.tokens.tolist())[n:]
        for k in range(len(self.windows)):
            self.cells(k)[seq.chain.column(CELL + k)[n:]] = new
        slide(self.kv, seq, before)
        drop_kept(self.kv)

    def computed(self, ids: Ids, chunk: int = 10**9) -> Sequence:
        """A sequence of its own that holds these tokens."""
        seq = self.kv.new_sequence()
        self.append(seq, ids, chunk)
        return seq

    def session(self, ids: Ids, namespace: str = "", answer: Ids | None = None, **options: Any) -> int:
        """A request, as the scheduler serves it; how many tokens were found. Nothing stays but what is in the tree."""
        match = self.tree.match(ids[:-1], [namespace])
        seq = self.kv.new_sequence()
        n = self.tree.attach(match, seq)
        self.check(seq)
        self.append(seq, ids[n:])
        self.tree.insert(seq, namespace, **options)
        if answer:
            self.append(seq, answer)
            self.tree.insert(seq, namespace, **options)
        self.check(seq)
        self.kv.free(seq)
        return n

    # -- what must be true ----------------------------------------------------------------------------------------

    def check(self, seq: Sequence) -> None:
        """All cells that a sequence still has hold what belongs there, and it can go on."""
        want = contents(seq.tokens.tolist())
        for k, window in enumerate(self.windows):
            gone = seq.chain.gone[k]
            got = self.cells(k)[seq.chain.column(CELL + k)[gone:]]
            assert (got == want[gone:]).all(), f"kind {k}"
            assert not gone or gone <= seq.n_tokens + 1 - window

    def check_references(self) -> None:
        """Each block is referenced by the sequences and nodes that lie in it, and the tree's bytes are right."""
        nodes = self.tree._nodes.by_id.values()
        n_bytes = sum(node.n_index_bytes for node in nodes)
        for k, pool in enumerate(self.kv.pools):
            counted, held = np.zeros(pool.n_blocks, np.int32), np.zeros(pool.n_blocks, np.int32)
            for seq in self.kv.sequences:
                counted[seq.chain.blocks(k)] += 1
            for node in nodes:
                held[node.held[k]] += 1
            assert (pool.n_refs_of(np.arange(pool.n_blocks)) == counted + held).all()
            assert pool.n_used == np.count_nonzero(counted + held)
            n_bytes += np.count_nonzero(held) * pool.block_bytes
        assert self.tree.n_bytes == n_bytes

    def paths(self, namespace: str) -> dict[int, Ids]:
        """All tokens of each node, by its id."""
        found: dict[int, Ids] = {}
        root = self.tree._nodes.roots.get(namespace)
        for node in root.subtree()[1:] if root else []:
            assert node.parent is not None
            found[node.id] = found.get(node.parent.id, []) + np.frombuffer(node.edge, np.int32).tolist()
            assert len(found[node.id]) == node.end
        return found

    def check_tree(self) -> None:
        """Edges, chains and contents agree, and a chain lies in nothing but what its path holds."""
        for namespace, root in self.tree._nodes.roots.items():
            assert root.children
            for id, ids in self.paths(namespace).items():
                node, want = self.tree._nodes.by_id[id], contents(ids)
                assert node.chain.column(0).tolist() == ids
                for k, window in enumerate(self.windows):
                    gone = node.chain.gone[k]
                    assert (self.cells(k)[node.chain.column(CELL + k)[gone:]] == want[gone:]).all()
                    held = np.concatenate([one.held[k] for one in ([node] if window else node.path())])
                    assert np.isin(node.chain.blocks(k), held).all()
                for first, child in node.children.items():
                    assert child.edge[:4] == first
                    assert (child.parent, child.start) == (node, node.end)
