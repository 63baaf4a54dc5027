"""A radix tree from token ids to nodes: walking, splitting, joining. Owns no reference on a block.

Token ids are compared as the bytes of int32: exact, and a hundred thousand of them in some microseconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmkit.errors import UsageError
from llmkit.memory.chain import Chain, Columns

ID_BYTES = 4
MAX_ID = 2**31 - 1


class Node:
    """Tokens start .. end of a path from the root of its namespace; those before are its ancestors'.

    edge: their ids, as bytes. chain: what a sequence of all tokens of the path, 0 .. end, holds. held: the blocks, by
    kind of memory, that are referenced for this node. children: by the bytes of the first id. is_entry: whether
    something that was inserted ends here; other nodes are where paths part. The rest says when it may leave.
    """

    __slots__ = (
        "chain", "children", "edge", "held", "hits", "id", "is_entry", "last_use", "n_bytes", "n_index_bytes",
        "namespace", "parent", "pinned", "priority", "protected", "rank", "start",
    )  # fmt: skip

    def __init__(self, namespace: str, parent: Node | None, start: int, edge: bytes, chain: Chain, id: int) -> None:
        self.namespace, self.parent, self.start, self.edge, self.chain, self.id = (
            namespace, parent, start, edge, chain, id,
        )  # fmt: skip
        self.children: dict[bytes, Node] = {}
        self.held: tuple[Columns, ...] = ()
        self.n_bytes, self.n_index_bytes = 0, 0
        self.hits, self.last_use, self.priority, self.rank = 0, 0.0, 0, 0
        self.is_entry, self.pinned, self.protected = False, False, False

    @property
    def end(self) -> int:
        return self.chain.n

    def path(self) -> list[Node]:
        """From this node up to below the root."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes

    def subtree(self) -> list[Node]:
        """This node and all below, each behind its parent."""
        nodes = [self]
        for node in nodes:  # grows while it is walked
            nodes += node.children.values()
        return nodes


def as_bytes(tokens: npt.ArrayLike) -> bytes:
    """Token ids as the bytes by which they are compared; UsageError for what is no list of ids."""
    ids = np.asarray(tokens)
    if ids.dtype == np.int32 and ids.ndim == 1:
        return ids.tobytes()
    if ids.size == 0:
        return b""
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > MAX_ID:
        raise UsageError("what is looked up is no list of token ids", "give whole numbers from 0 on")
    return ids.astype(np.int32).tobytes()


def walk(root: Node, ids: bytes) -> tuple[Node, int]:
    """The last node that shares tokens with `ids`, and how many of all these are the same from the first on."""
    node, done = root, 0
    while (child := node.children.get(ids[done : done + ID_BYTES])) is not None:
        if not ids.startswith(child.edge, done):
            return child, done // ID_BYTES + _n_same(child.edge, ids[done : done + len(child.edge)])
        node, done = child, done + len(child.edge)
    return node, done // ID_BYTES


def _n_same(edge: bytes, ids: bytes) -> int:
    """How many ids are the same from the first on, of two that are not the same, or of which one is longer."""
    n = min(len(edge), len(ids)) // ID_BYTES
    differ = np.frombuffer(edge, np.int32, n) != np.frombuffer(ids, np.int32, n)
    return int(differ.argmax()) if differ.any() else n


def link(node: Node) -> None:
    """Puts a node below its parent, in the place of what begins with the same id."""
    assert node.parent is not None
    node.parent.children[node.edge[:ID_BYTES]] = node


def unlink(node: Node) -> None:
    """Takes a node from its parent."""
    assert node.parent is not None
    del node.parent.children[node.edge[:ID_BYTES]]


def put_between(top: Node, node: Node) -> None:
    """Puts `top`, which has the first tokens of the node's edge, between the node and its parent."""
    link(top)
    node.edge, node.start, node.parent = node.edge[len(top.edge) :], top.end, top
    link(node)


def join(parent: Node, child: Node) -> None:
    """Puts an only child in the place of its parent, whose tokens it takes over."""
    child.edge, child.start, child.parent = parent.edge + child.edge, parent.start, parent.parent
    link(child)
