"""The obvious prefix tree: a list of the sequences that were inserted, looked through from end to end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llmkit.memory.operations import without


@dataclass
class PlainMatch:
    n_tokens: int
    entry: Any = None


@dataclass
class PlainEntry:
    id: int
    namespace: str
    seq: Any
    tokens: list[int]


@dataclass
class PlainStats:
    evictions: int = 0


@dataclass
class PlainTree:
    kv: Any
    max_bytes: int = 0
    held: list[PlainEntry] = field(default_factory=list)
    stats: PlainStats = field(default_factory=PlainStats)
    n_inserted: int = 0

    def match(self, tokens: Any, namespaces: Sequence[str]) -> PlainMatch:
        best, tokens = PlainMatch(0), list(tokens)
        for entry in self.held:
            n = 0
            while n < min(len(tokens), len(entry.tokens)) and tokens[n] == entry.tokens[n]:
                n += 1
            if entry.namespace in namespaces and n > best.n_tokens:
                best = PlainMatch(n, entry)
        return best

    def attach(self, match: PlainMatch, seq: Any, n_tokens: int | None = None) -> int:
        assert seq.n_tokens == 0
        n, chain = match.n_tokens if n_tokens is None else n_tokens, match.entry.seq.chain
        self.kv.replace(seq, without(chain, n, chain.n, self.kv.windows))
        self.held.sort(key=lambda entry: entry is match.entry)
        return n

    def insert(self, seq: Any, namespace: str, n_tokens: int | None = None) -> int:
        own = self.kv.new_sequence()
        n = seq.n_tokens if n_tokens is None else n_tokens
        self.kv.replace(own, without(seq.chain, n, seq.n_tokens, self.kv.windows))
        self.n_inserted += 1
        self.held.append(PlainEntry(self.n_inserted, namespace, own, own.tokens.tolist()))
        return self.n_inserted

    def make_room(self, n_blocks: Sequence[int]) -> bool:
        while self.held and not self._fits(n_blocks):
            self.stats.evictions += 1
            self.kv.free(self.held.pop(0).seq)
        return self._fits(n_blocks)

    def _fits(self, n_blocks: Sequence[int]) -> bool:
        return all(pool.n_free >= n for pool, n in zip(self.kv.pools, n_blocks, strict=True))

    def entries(self, namespace: str | None = None) -> list[PlainEntry]:
        return [entry for entry in self.held if namespace in (None, entry.namespace)]

    def clear(self, namespace: str | None = None) -> None:
        for entry in self.entries(namespace):
            self.remove(entry.id)

    def remove(self, id: int) -> None:
        (entry,) = (entry for entry in self.held if entry.id == id)
        self.held.remove(entry)
        self.kv.free(entry.seq)
