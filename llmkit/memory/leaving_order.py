"""In which order nodes of a prefix tree leave: lowest priority first, then what was used once, then least recent.

What is used again is protected: whatever is only used once, however much of it comes, leaves before it. So that what
was used again long ago can leave too, no more than a part of the memory is protected. When more is used again, the
least recent of the protected stand in line again, behind all others. Only leaves leave; a node is used by whoever uses
one below it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from llmkit.memory.radix import Node

_Key = tuple[int, bool, int]  # priority, whether protected, when last used


class LeavingOrder:
    """max_protected: bytes of protected nodes, at most; one may be larger."""

    def __init__(self, max_protected: int) -> None:
        self._max_protected, self._n_protected = max_protected, 0
        self._protected: OrderedDict[int, Node] = OrderedDict()  # least recently used first
        self._heap: list[tuple[_Key, int]] = []  # with ids; what is not in _queued any longer, with this key, is stale
        self._queued: dict[int, tuple[_Key, Node]] = {}
        self._limit = 1024
        self._clock = 0

    def use(self, node: Node) -> None:
        """The node was used, for the first time or by who computed the same: it is the most recent."""
        self._clock += 1
        node.rank = self._clock
        if node.protected:
            self._protected.move_to_end(node.id)
        self.offer(node)

    def use_again(self, node: Node) -> None:
        """The node was of use to another than who brought it."""
        if not node.protected:
            self.protect(node)
        self.use(node)
        self._demote()

    def protect(self, node: Node) -> None:
        node.protected = True
        self._protected[node.id] = node
        self._n_protected += node.n_bytes

    def _demote(self) -> None:
        while self._n_protected > self._max_protected and len(self._protected) > 1:
            node = next(iter(self._protected.values()))
            self._unprotect(node)
            self.use(node)

    def resize(self, node: Node, n_bytes: int) -> None:
        """Sets how many bytes the node has."""
        if node.protected:
            self._n_protected += n_bytes - node.n_bytes
        node.n_bytes = n_bytes

    def _unprotect(self, node: Node) -> None:
        if node.protected:
            node.protected = False
            del self._protected[node.id]
            self._n_protected -= node.n_bytes

    def forget(self, node: Node) -> None:
        """The node is no more."""
        self._unprotect(node)
        self._queued.pop(node.id, None)

    def offer(self, node: Node) -> None:
        """The node may leave when its turn comes, if it is a leaf."""
        key = (node.priority, node.protected, node.rank)
        if node.children or node.parent is None or (node.id in self._queued and self._queued[node.id][0] == key):
            return
        self._queued[node.id] = key, node
        heapq.heappush(self._heap, (key, node.id))
        if len(self._heap) > self._limit:
            self._heap = [(key, id) for id, (key, _) in self._queued.items()]
            heapq.heapify(self._heap)
            self._limit = 2 * len(self._heap) + 1024

    def pop(self) -> Node | None:
        """The leaf that is to leave first, None when there is none; it is not offered any longer."""
        while self._heap:
            key, id = heapq.heappop(self._heap)
            queued = self._queued.get(id)
            if queued is not None and queued[0] == key:
                del self._queued[id]
                if not queued[1].children:
                    return queued[1]
        return None
