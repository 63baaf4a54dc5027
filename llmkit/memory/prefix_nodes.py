"""The nodes of a prefix tree with the blocks they hold: taken in, split, joined, dropped. Does not decide who leaves.

Invariant: a node holds the blocks of its own tokens as its chain has them, and with windows all that its chain has. Its
chain lies in no other blocks but those that its ancestors hold.
"""

from __future__ import annotations

import numpy as np

from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import CELL, Chain
from llmkit.memory.held_blocks import HeldBlocks
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.leaving_order import LeavingOrder
from llmkit.memory.prefix_chains import first_of_block, grafted, held_blocks, is_complete, own_bytes, with_tail
from llmkit.memory.radix import ID_BYTES, Node, join, link, put_between, unlink, walk

NODE_BYTES = 4096  # what a node takes beside its ids and columns, at most


class PrefixNodes:
    """Nodes by namespace and by id. Whatever changes them tells `order`."""

    def __init__(self, kv: KvCache, order: LeavingOrder) -> None:
        self._pools, self._windows, self._order = kv.pools, kv.windows, order
        self.held = HeldBlocks(kv)
        self.roots: dict[str, Node] = {}
        self.by_id: dict[int, Node] = {}
        self._last_id, self._n_index_bytes = 0, 0

    @property
    def n_bytes(self) -> int:
        """Bytes of all blocks that are held, each once, and of the nodes themselves."""
        return self.held.n_bytes + self._n_index_bytes

    def root(self, namespace: str) -> Node:
        """The root of a namespace; a new one is not among `roots` before something is below it."""
        return self.roots.get(namespace) or Node(namespace, None, 0, b"", Chain((), (0,) * len(self._windows)), 0)

    def find(self, namespace: str, ids: bytes) -> tuple[Node | None, int, int]:
        """The node that a sequence can go on from, with how many tokens; and how many are there."""
        root = self.roots.get(namespace)
        if root is None:
            return None, 0, 0
        node, n_matched = walk(root, ids)
        n_tokens = n_matched
        while node.parent is not None:
            if is_complete(node.chain, n_tokens, self._windows):
                return node, n_tokens, n_matched
            node = node.parent
            n_tokens = node.end
        return None, 0, n_matched

    def is_point(self, node: Node) -> bool:
        """Whether a sequence can go on from the node's end."""
        return is_complete(node.chain, node.end, self._windows)

    # -- what is needed -------------------------------------------------------------------------------------------

    def top_chain(self, node: Node, n: int) -> Chain:
        """The chain of what a node is divided into behind its path's first n tokens: of the part before."""
        assert node.parent is not None
        return grafted(node.parent.chain, node.start, node.chain, n, self._windows)

    def bytes_of(self, chain: Chain, start: int, n_ids: int) -> int:
        """Bytes that a node of n_ids tokens from `start` on takes with this chain; of blocks those not held yet."""
        return self.held.new_bytes(held_blocks(chain, start, self._windows)) + _index_bytes(chain, n_ids)

    # -- changes --------------------------------------------------------------------------------------------------

    def add(self, parent: Node, edge: bytes, chain: Chain) -> Node:
        """A new leaf below `parent`, whose tokens end where the leaf's begin."""
        node = self._new(parent, parent.end, edge, chain)
        self.roots[node.namespace] = self._root_of(parent)
        link(node)
        self._give_up_tail(parent, node)
        return node

    def _root_of(self, node: Node) -> Node:
        while node.parent is not None:
            node = node.parent
        return node

    def split(self, node: Node, chain: Chain) -> Node:
        """Divides a node; the new one, which has the tokens before and `chain` (see top_chain)."""
        assert node.parent is not None
        edge = node.edge[: (chain.n - node.start) * ID_BYTES]
        top = self._new(node.parent, node.start, edge, chain)
        top.hits, top.last_use, top.priority, top.rank = node.hits, node.last_use, node.priority, node.rank
        if node.protected:
            self._order.protect(top)
        put_between(top, node)
        self._hold(node)
        return top

    def _new(self, parent: Node, start: int, edge: bytes, chain: Chain) -> Node:
        self._last_id += 1
        node = Node(parent.namespace, parent, start, edge, chain, self._last_id)
        self._grow(node, _index_bytes(chain, len(edge) // ID_BYTES))
        self.by_id[node.id] = node
        self._hold(node)
        return node

    def set_chain(self, node: Node, chain: Chain) -> None:
        """Gives a node another chain of the same tokens."""
        node.chain = chain
        self._grow(node, own_bytes(chain))
        self._hold(node)

    def _grow(self, node: Node, n_bytes: int) -> None:
        node.n_index_bytes += n_bytes
        self._n_index_bytes += n_bytes

    def _hold(self, node: Node) -> None:
        """Moves the references of a node to the blocks that its tokens lie in now."""
        old, node.held = node.held, held_blocks(node.chain, node.start, self._windows)
        self.held.retain(node.held)
        if old:
            self.held.release(old)
        self._order.resize(node, self.held.bytes_of(node.held))

    def _give_up_tail(self, node: Node, child: Node) -> None:
        """Frees the block that a node has only begun if nobody else lies in it: the child's begins with the same."""
        base = first_of_block(node.end)
        if base == node.end:
            return
        rows, theirs = np.array(node.chain.rows(base, node.end)), child.chain.rows(base, node.end)
        changed = False
        for k, pool in enumerate(self._pools):
            mine, same = rows[CELL + k], (rows[CELL + k] == theirs[CELL + k]).all()
            if same or max(node.chain.gone[k], child.chain.gone[k]) > base:
                continue
            if (pool.n_refs_of(np.unique(mine // BLOCK_CELLS)) == 1).all():
                mine[:], changed = theirs[CELL + k], True
        if changed:
            node.chain = with_tail(node.chain, base, rows)  # columns of less than a block: among NODE_BYTES
            self._hold(node)

    def drop(self, leaf: Node, keep: Node | None = None) -> None:
        """Takes a leaf out. What parted there is joined again, but `keep`: each node is a step of a lookup."""
        parent = leaf.parent
        assert parent is not None
        assert not leaf.children
        unlink(leaf)
        self.forget(leaf)
        if parent.parent is None:
            if not parent.children:
                self.roots.pop(parent.namespace, None)
        elif len(parent.children) == 1 and parent is not keep and not self._matters(parent):
            (child,) = parent.children.values()
            join(parent, child)
            self._grow(child, parent.n_index_bytes)
            self._hold(child)
            self.forget(parent)
        else:
            self._order.offer(parent)

    def _matters(self, node: Node) -> bool:
        """Whether a node with one child is more than a step: something ends there, or can only go on from there."""
        return node.is_entry or node.pinned or (any(self._windows) and self.is_point(node))

    def forget(self, node: Node) -> None:
        """Drops what is held for a node that is no longer in its place."""
        self._order.forget(node)
        del self.by_id[node.id]
        self._n_index_bytes -= node.n_index_bytes
        self.held.release(node.held)


def _index_bytes(chain: Chain, n_ids: int) -> int:
    return NODE_BYTES + ID_BYTES * n_ids + own_bytes(chain)
