"""What was computed once, kept for whoever begins with the same tokens: a radix tree over token ids in each namespace.

A node holds references on the blocks of its tokens, so that they stay when the sequence that computed them goes.
Nothing of one namespace is ever found through another. Knows no model and no requests. To be called between two
decodes, by the thread that decodes.

    match = tree.match(prompt[:-1], [own, "public"])    # the last token is computed again, for its logits
    n_past = tree.attach(match, seq)                    # also where nothing was found: it counts
    tree.make_room(blocks)                              # after that, so that what was found stays
    ... decode the rest of the prompt ...
    tree.insert(seq, own)                               # at its end, at that of the answer, with windows also between
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llmkit.errors import LlmkitError, UsageError
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.chain import TOKEN, Chain
from llmkit.memory.kv_cache import KvCache
from llmkit.memory.leaving_order import LeavingOrder
from llmkit.memory.prefix_chains import beginning, first_of_block, grafted, is_complete, n_plain, repointed, same_cells
from llmkit.memory.prefix_nodes import PrefixNodes
from llmkit.memory.radix import ID_BYTES, Node, as_bytes, walk
from llmkit.memory.sequence import Sequence

PROTECTED = 0.75  # of the memory, for what was used again


@dataclass(frozen=True)
class Match:
    """What is there of the tokens that were looked up.

    n_tokens: how many can be attached. n_matched: how many are there, token for token; more than n_tokens where
    windows no longer hold what would be seen from there: then n_tokens is the last point before. n_asked: of how many.
    """

    n_tokens: int
    n_matched: int
    namespace: str
    n_asked: int
    _ids: bytes = field(repr=False)


@dataclass(frozen=True)
class PrefixInfo:
    """A node. n_tokens: from the first on. bytes: of the blocks that its own tokens lie in, those behind its parent.

    n_sharers: sequences that lie in its blocks now. hits: how often it was attached, or something behind it. last_use:
    seconds as of time.time(). is_point: whether a sequence can go on from its end.
    """

    id: int
    namespace: str
    n_tokens: int
    bytes: int
    n_sharers: int
    hits: int
    last_use: float
    pinned: bool
    priority: int
    is_point: bool


@dataclass
class PrefixStats:
    """Counted from the start. hits, misses: attachments of some tokens, and of none. skipped: did not fit max_bytes."""

    hits: int = 0
    misses: int = 0
    tokens_hit: int = 0
    tokens_asked: int = 0
    insertions: int = 0
    evictions: int = 0
    skipped: int = 0


class PrefixTree:
    """Prefixes in the blocks of a cache.

    max_bytes: how much the blocks that are held and the tree itself may take, at any moment; 0: as much as the cache
    has. Should a change be interrupted (Ctrl-C), all that is kept is forgotten.
    """

    def __init__(self, kv: KvCache, *, max_bytes: int = 0) -> None:
        self._kv, self._windows, self.max_bytes = kv, kv.windows, max_bytes
        self.stats = PrefixStats()
        self._start()
        kv.holders.append(self)

    def _start(self) -> None:
        n_bytes = self.max_bytes or sum(pool.n_blocks * pool.block_bytes for pool in self._kv.pools)
        self._order = LeavingOrder(int(PROTECTED * n_bytes))
        self._nodes = PrefixNodes(self._kv, self._order)
        self._pinned: set[int] = set()

    # -- questions ------------------------------------------------------------------------------------------------

    @property
    def n_bytes(self) -> int:
        """Bytes of all blocks that are held, each once, and of the tree itself."""
        return self._nodes.n_bytes

    def match(self, tokens: npt.ArrayLike, namespaces: Many[str]) -> Match:
        """What can be attached of these token ids, from the first on: the most in any of the namespaces, or the first.

        Changes nothing.
        """
        ids = as_bytes(tokens)
        best = Match(0, 0, namespaces[0] if namespaces else "", len(ids) // ID_BYTES, ids)
        for namespace in namespaces:
            _, n_tokens, n_matched = self._nodes.find(namespace, ids)
            if (n_tokens, n_matched) > (best.n_tokens, best.n_matched):
                best = Match(n_tokens, n_matched, namespace, best.n_asked, ids)
        return best

    def entries(self, namespace: str | None = None) -> list[PrefixInfo]:
        """All nodes, of one namespace or of all, a prefix before what continues it."""
        roots = [root for name, root in self._nodes.roots.items() if namespace in (None, name)]
        return [self._info(node) for root in roots for node in root.subtree()[1:]]

    def _info(self, node: Node) -> PrefixInfo:
        n_sharers = self._nodes.held.n_others(node.held)
        return PrefixInfo(
            node.id, node.namespace, node.end, node.n_bytes, n_sharers, node.hits, node.last_use, node.pinned,
            node.priority, self._nodes.is_point(node),
        )  # fmt: skip

    def count(self, kind: int) -> npt.NDArray[np.int32]:
        """The references on each block of a kind, counted anew (KvCache.recount asks)."""
        return self._nodes.held.recount(kind, [node.held for node in self._nodes.by_id.values()])

    # -- taking part ----------------------------------------------------------------------------------------------

    def attach(self, match: Match, seq: Sequence, n_tokens: int | None = None) -> int:
        """Gives an empty sequence the cells of what was matched, or of the first n_tokens; how many it got.

        Fewer where something left since, or where windows do not hold what would be seen from there. Counts a hit, or
        a miss.
        """
        assert seq.n_tokens == 0, "only an empty sequence can be attached"
        wanted = match.n_tokens if n_tokens is None else max(0, min(n_tokens, match.n_tokens))
        with self._changing():
            node, n, _ = self._nodes.find(match.namespace, match._ids[: wanted * ID_BYTES])
            if node is not None:
                self._kv.replace(seq, beginning(node.chain, n))
                self._use_again(node, n)
            self.stats.hits += n > 0
            self.stats.misses += n == 0
            self.stats.tokens_hit += n
            self.stats.tokens_asked += match.n_asked
        return n

    def _use_again(self, node: Node, n: int) -> None:
        """The first n tokens were of use. What a node has more is no longer part of it, if that is a block or more."""
        if node.end - n >= BLOCK_CELLS:
            top = self._nodes.top_chain(node, n)
            if self._reserve(self._nodes.bytes_of(top, node.start, 0), node):
                node = self._nodes.split(node, top)
        now = time.time()
        for used in node.path():
            used.hits += 1
            used.last_use = now
            self._order.use_again(used)

    def insert(self, seq: Sequence, namespace: str, n_tokens: int | None = None, *, priority: int = 0) -> int:
        """Keeps the first n_tokens tokens of a sequence, or all; the id of the entry, 0 when nothing could be kept.

        No cell is copied. Where the same tokens are kept already, those cells stay, and the sequence is pointed to
        them, so that its own are free. With windows a point is recorded, from which a sequence can go on, where `seq`
        still holds what would be seen from there, as it does at its end. Tokens whose positions were changed, or that
        follow some that were removed, are no prefix of any text and left out.
        """
        n = n_plain(seq.chain, seq.n_tokens if n_tokens is None else min(n_tokens, seq.n_tokens))
        if n <= 0:
            return 0
        with self._changing():
            node = self._keep(seq.chain, namespace, n)
            if node is None:
                self.stats.skipped += 1
                return 0
            node.priority = max(priority, node.priority) if node.is_entry else priority
            node.is_entry = True
            now = time.time()
            for used in node.path():
                used.last_use = now
                self._order.use(used)
            self.stats.insertions += 1
            self._repoint(seq, node)
            return node.id

    def _keep(self, chain: Chain, namespace: str, n: int) -> Node | None:
        """The node that ends with the chain's first n tokens; None, and nothing changed, when it does not fit."""
        ids = as_bytes(chain.column(TOKEN)[:n].astype(np.int32))
        node, n_same = walk(self._nodes.root(namespace), ids)
        top, kept, n_bytes = None, None, 0
        if n_same < node.end:
            top = self._nodes.top_chain(node, n_same)
            n_bytes += self._nodes.bytes_of(top, node.start, 0)
        lacks_windows = is_complete(chain, n, self._windows) > is_complete(node.chain, n_same, self._windows)
        if n_same < n or lacks_windows:
            kept = grafted(node.chain, n_same, chain, n, self._windows)
            n_bytes += self._nodes.bytes_of(kept, n_same, n - n_same)
        if not self._reserve(n_bytes, node):
            return None
        if top is not None:
            node = self._nodes.split(node, top)
        if kept is None:
            return node
        if n_same < n:
            return self._nodes.add(node, ids[n_same * ID_BYTES :], kept)
        self._nodes.set_chain(node, kept)
        return node

    def _repoint(self, seq: Sequence, node: Node) -> None:
        """Points a sequence to the cells in which its tokens are kept, where it has others."""
        n = node.end if seq.n_tokens == node.end else first_of_block(node.end)
        if not all(same_cells(seq.chain, node.chain, n, k) for k in range(len(self._windows))):
            self._kv.replace(seq, repointed(seq.chain, node.chain, self._windows))

    # -- making room ----------------------------------------------------------------------------------------------

    def make_room(self, n_blocks: Many[int], *, in_use: bool = False) -> bool:
        """Lets leaves go until each pool, by kind of memory, has so many free blocks; False if that cannot be.

        Then nothing goes, unless what is in use in part is in the way. Pinned leaves and those in use stay; with
        `in_use` only pinned ones do, as the last resort of a sequence that is alone with what it shares.
        """
        pools = self._kv.pools

        def done() -> bool:
            return all(pool.n_free >= n for pool, n in zip(pools, n_blocks, strict=True))

        if done():
            return True
        if not in_use and any(pools[k].n_free + self.n_evictable(k) < n for k, n in enumerate(n_blocks)):
            return False
        with self._changing():
            return self._evict(done, None, in_use)

    def n_evictable(self, kind: int) -> int:
        """How many blocks of this kind could be freed: nobody else is in them, and nothing that is pinned."""
        alone = self._nodes.held.alone(kind)
        for id in self._pinned:
            for node in self._nodes.by_id[id].path():
                alone[node.held[kind]] = False
        return int(alone.sum())

    def _reserve(self, n_bytes: int, keep: Node) -> bool:
        """Makes room within max_bytes; False when there cannot be. `keep` stays what it is."""
        if self.max_bytes == 0:
            return True
        if n_bytes > self.max_bytes:
            return False
        return self._evict(lambda: self.n_bytes + n_bytes <= self.max_bytes, keep)

    def _evict(self, done: Callable[[], bool], keep: Node | None, in_use: bool = False) -> bool:
        """Lets leaves go, in their order, until it is done; False when none is left before."""
        stay = []
        while not done():
            node = self._order.pop()
            if node is None:
                break
            if node is keep or node.pinned or (not in_use and self._nodes.held.n_others(node.held)):
                stay.append(node)
                continue
            self._nodes.drop(node, keep)
            self.stats.evictions += 1
        for node in stay:
            self._order.offer(node)
        return done()

    # -- by id ----------------------------------------------------------------------------------------------------

    def _node(self, id: int) -> Node:
        if id not in self._nodes.by_id:
            raise UsageError(f"there is no cached prefix {id}", "list those that are there")
        return self._nodes.by_id[id]

    def pin(self, id: int) -> None:
        """The prefix, and with it all it continues, stays until it is unpinned or removed; UsageError without it."""
        self._node(id).pinned = True
        self._pinned.add(id)

    def unpin(self, id: int) -> None:
        """The prefix may leave again when its turn comes."""
        node = self._node(id)
        node.pinned = False
        self._pinned.discard(id)
        self._order.offer(node)

    def remove(self, id: int) -> None:
        """Removes a prefix and all that continues it, pinned or not. Sequences keep the cells they share."""
        node = self._node(id)
        with self._changing():
            below = node.subtree()[1:]
            node.children.clear()
            for gone in below:
                self._nodes.forget(gone)
            self._nodes.drop(node)
            self._pinned &= self._nodes.by_id.keys()

    def clear(self, namespace: str | None = None) -> None:
        """Removes all prefixes, of one namespace or of all, pinned ones too."""
        with self._changing():
            for name in [n for n in self._nodes.roots if namespace in (None, n)]:
                for node in self._nodes.roots.pop(name).subtree()[1:]:
                    self._nodes.forget(node)
            self._pinned &= self._nodes.by_id.keys()

    def close(self) -> None:
        """Removes all, and leaves the cache to others."""
        self.clear()
        if self in self._kv.holders:
            self._kv.holders.remove(self)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Around a change: an interruption may leave it half done, and then all is forgotten and counted anew."""
        try:
            yield
        except LlmkitError:
            raise
        except BaseException:
            self._start()
            self._kv.recount()
            raise
