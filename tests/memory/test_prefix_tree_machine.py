"""Random use of a prefix tree beside a model that keeps token lists: what is found, what leaves, references, bytes."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from llmkit.errors import ContextFullError, RewindError
from llmkit.memory.block_pool import BLOCK_CELLS
from llmkit.memory.held_blocks import HeldBlocks
from tests.memory.prefixes import Cache, Ids

N_SEQUENCES, N_CTX, N_CELLS = 3, 256, 640
NAMES = ["a", "b", "public"]

# Texts are made of words, each one token several times, so that many begin alike and part anywhere.
WORDS = st.lists(st.tuples(st.integers(1, 2), st.sampled_from([1, 2, 7, 19, 31, 32, 33, 40])), min_size=1, max_size=5)
TEXTS = WORDS.map(lambda words: [token for token, n in words for _ in range(n)])
WHO = st.integers(0, N_SEQUENCES - 1)
NAMESPACES = st.sampled_from([["a"], ["b"], ["a", "public"], ["b", "public"], ["public"], []])
SIZES = st.one_of(st.none(), st.integers(0, 200))


def n_common(a: Ids, b: Iterable[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


class Machine(RuleBasedStateMachine):
    """`paths`: the token lists that are kept, of each namespace by id. `plain`: how many of a sequence's tokens hold
    what computing them in order gives."""

    window, max_bytes = 0, 0

    @initialize(seed=st.integers(0, 1000))
    def start(self, seed: int) -> None:
        self.cache = Cache(N_CTX, self.window, N_CELLS, self.max_bytes)
        for pool in self.cache.kv.pools:
            pool.shuffle(seed)
            pool.poison(True)
        self.tree = self.cache.tree
        self.sequences = [self.cache.memory.sequence(i) for i in range(N_SEQUENCES)]
        self.tokens: list[Ids] = [[] for _ in self.sequences]
        self.plain = [0] * N_SEQUENCES
        self.inserted: dict[str, list[Ids]] = {name: [] for name in NAMES}
        self.points: dict[int, Ids] = {}  # entries that a sequence can go on from, surely
        self.pinned: set[int] = set()

    # -- sequences ------------------------------------------------------------------------------------------------

    def append(self, i: int, text: Ids) -> None:
        seq = self.sequences[i]
        text = text[: N_CTX - seq.n_tokens]
        if self.window:  # room for windows is not asked for before: they are small
            self.tree.make_room([8, 8])
        try:
            self.cache.append(seq, text, chunk=16 if self.window else 999)
        except ContextFullError:
            n_blocks = len(text) // BLOCK_CELLS + 2
            while self.tree.make_room([n_blocks] * len(self.cache.windows)) is False and text:
                text, n_blocks = text[:-BLOCK_CELLS], n_blocks - 1
            text = text if not self.window else []
            self.cache.append(seq, text)
        n_new = seq.n_tokens - len(self.tokens[i])
        if self.plain[i] == len(self.tokens[i]):
            self.plain[i] += n_new
        self.tokens[i] = seq.tokens.tolist()

    @rule(i=WHO, text=TEXTS)
    def decode(self, i: int, text: Ids) -> None:
        self.append(i, text)

    @rule(i=WHO, text=TEXTS, names=NAMESPACES, n_tokens=SIZES, name=st.sampled_from(NAMES), cut=st.booleans())
    def session(self, i: int, text: Ids, names: list[str], n_tokens: int | None, name: str, cut: bool) -> None:
        self.begin(i, text, names, n_tokens)
        self.append(i, text[len(self.tokens[i]) :])
        self.insert(i, name, None, 0)

    @rule(i=WHO, text=TEXTS, names=NAMESPACES, n_tokens=SIZES)
    def begin(self, i: int, text: Ids, names: list[str], n_tokens: int | None) -> None:
        self.cache.memory.seq_rm(i)
        seq, stats, before = self.sequences[i], self.tree.stats, self.all_paths()
        match = self.tree.match(text, names)
        self.check_match(match, text, names)
        asked = stats.hits + stats.misses, stats.tokens_asked
        n = self.tree.attach(match, seq, n_tokens)
        wanted = match.n_tokens if n_tokens is None else min(n_tokens, match.n_tokens)
        assert n == wanted if not self.window else n <= wanted
        if self.window and wanted == match.n_tokens:
            assert n == wanted
        assert (stats.hits + stats.misses, stats.tokens_asked) == (asked[0] + 1, asked[1] + len(text))
        assert seq.tokens.tolist() == text[:n]
        assert seq.positions.tolist() == list(range(n))
        self.tokens[i], self.plain[i] = text[:n], n
        self.check_left(before, {name: [] for name in NAMES})

    def check_match(self, match: Any, text: Ids, names: list[str]) -> None:
        """The most in any of the namespaces; where windows cut it, no less than what surely is a point."""
        kept = [path for name in names for path in self.cache.paths(name).values()]
        n_matched = max([n_common(text, path) for path in kept], default=0)
        points = [p for id, p in self.points.items() if id in self.tree._nodes.by_id and self.name_of(id) in names]
        surely = max([len(path) for path in points if text[: len(path)] == path], default=0)
        assert match.n_asked == len(text)
        if self.window:
            assert surely <= match.n_tokens <= match.n_matched <= n_matched
        else:
            assert match.n_tokens == match.n_matched == n_matched
        if match.n_tokens:
            assert match.namespace in names

    def name_of(self, id: int) -> str:
        return self.tree._nodes.by_id[id].namespace

    @rule(i=WHO, p0=st.integers(0, 120), n=st.integers(1, 40))
    def remove_a_range(self, i: int, p0: int, n: int) -> None:
        if self.cache.memory.seq_rm(i, p0, p0 + n):
            self.changed(i, p0)

    @rule(i=WHO, p0=st.integers(0, 120))
    def truncate(self, i: int, p0: int) -> None:
        if self.cache.memory.seq_rm(i, p0, -1):
            self.changed(i, p0)

    @rule(i=WHO, p0=st.integers(0, 120), by=st.integers(-40, 40), n=st.integers(1, 64))
    def shift(self, i: int, p0: int, by: int, n: int) -> None:
        """As a context shift does: n tokens go, and those behind close the gap; or positions move by something else."""
        memory = self.cache.memory
        if by % 2:
            with suppress(RewindError):
                if memory.seq_rm(i, p0, p0 + n):
                    memory.seq_add(i, p0 + n, -1, -n)
        elif not self.window:
            memory.seq_add(i, p0, -1, by)
        self.changed(i, p0 if by >= 0 or by % 2 else 0)

    def changed(self, i: int, p0: int) -> None:
        """Where tokens go or move, those before stay plain, and those behind are no more, as long as there are some."""
        tokens = self.sequences[i].tokens.tolist()
        kept = min(self.plain[i], n_common(tokens, self.tokens[i]))
        same = tokens == self.tokens[i] and self.sequences[i].positions.tolist() == list(range(len(tokens)))
        if not same:
            kept = min(kept, p0)
        self.tokens[i], self.plain[i] = tokens, min(kept, len(tokens))

    @rule(i=WHO, j=WHO)
    def copy(self, i: int, j: int) -> None:
        self.cache.memory.seq_cp(i, j)
        self.tokens[j], self.plain[j] = self.tokens[i], self.plain[i]

    @rule()
    def clear_memory(self) -> None:
        self.cache.memory.clear()
        self.tokens, self.plain = [[] for _ in self.sequences], [0] * N_SEQUENCES

    @rule()
    def recount(self) -> None:
        self.cache.kv.recount()

    # -- the tree -------------------------------------------------------------------------------------------------

    def all_paths(self) -> dict[str, dict[int, Ids]]:
        return {name: self.cache.paths(name) for name in NAMES}

    def check_left(self, before: dict[str, dict[int, Ids]], new: dict[str, list[Ids]]) -> None:
        """What there is is what there was and what is new; less only if something was evicted, and no pinned one."""
        for name, paths in self.all_paths().items():
            there = {tuple(path[:n]) for path in paths.values() for n in range(len(path) + 1)}
            was = {tuple(path[:n]) for path in before[name].values() for n in range(len(path) + 1)}
            came = {tuple(path[:n]) for path in new[name] for n in range(len(path) + 1)}
            assert there <= was | came
            assert came <= there
            if self.tree.stats.evictions == self.n_evictions:
                assert was <= there
            for id in self.pinned & before[name].keys():
                assert paths[id] == before[name][id]
        self.n_evictions = self.tree.stats.evictions

    n_evictions = 0

    @rule(i=WHO, name=st.sampled_from(NAMES), n_tokens=SIZES, priority=st.sampled_from([0, 0, 1, -1]))
    def insert(self, i: int, name: str, n_tokens: int | None, priority: int) -> None:
        seq, before = self.sequences[i], self.all_paths()
        free = [pool.n_free for pool in self.cache.kv.pools]
        id = self.tree.insert(seq, name, n_tokens, priority=priority)
        asked = len(self.tokens[i]) if n_tokens is None else n_tokens
        n = min(self.plain[i], asked)
        assert [pool.n_free for pool in self.cache.kv.pools] >= free or min(self.cache.windows) == 0
        assert all(now >= then for now, then in zip([p.n_free for p in self.cache.kv.pools], free, strict=True))
        assert seq.tokens.tolist() == self.tokens[i]
        new: dict[str, list[Ids]] = {name: [] for name in NAMES}
        if id:
            new[name] = [self.tokens[i][:n]]
            assert self.cache.paths(name)[id] == self.tokens[i][:n]
            if n == len(self.tokens[i]):
                self.points[id] = self.tokens[i]
        else:
            assert n == 0 or self.max_bytes
        self.check_left(before, new)

    @rule(n=st.integers(1, 20), m=st.integers(1, 20))
    def make_room(self, n: int, m: int) -> None:
        before, pools = self.all_paths(), self.cache.kv.pools
        wanted = [n, m][: len(pools)]
        possible = [pool.n_blocks - self.n_staying(k) for k, pool in enumerate(pools)]
        done = self.tree.make_room(wanted)
        assert done == all(pool.n_free >= n for pool, n in zip(pools, wanted, strict=True))
        assert done or any(n > most for n, most in zip(wanted, possible, strict=True))
        self.check_left(before, {name: [] for name in NAMES})

    def n_staying(self, k: int) -> int:
        """How many blocks of a kind cannot be freed: sequences lie in them, or what is pinned or in use goes on."""
        used = [{int(b) for seq in self.sequences for b in seq.chain.blocks(i)} for i in range(len(self.cache.windows))]
        stays: set[int] = set(used[k])
        for node in self.tree._nodes.by_id.values():
            if node.pinned or any(used[i] & {int(b) for b in held} for i, held in enumerate(node.held)):
                stays |= {int(b) for above in node.path() for b in above.held[k]}
        return len(stays)

    def some_id(self, number: int) -> int:
        ids = [entry.id for entry in self.tree.entries()]
        return ids[number % len(ids)] if ids else 0

    @rule(number=st.integers(0, 99))
    def pin(self, number: int) -> None:
        if id := self.some_id(number):
            self.tree.pin(id)
            self.pinned.add(id)

    @rule(number=st.integers(0, 99))
    def unpin(self, number: int) -> None:
        id = sorted(self.pinned)[number % len(self.pinned)] if self.pinned else self.some_id(number)
        if id:
            self.tree.unpin(id)
            self.pinned.discard(id)

    @rule(number=st.integers(0, 99))
    def remove(self, number: int) -> None:
        if not (id := self.some_id(number)):
            return
        name, before = self.name_of(id), self.all_paths()
        gone = before[name][id]
        start = self.tree._nodes.by_id[id].start
        self.tree.remove(id)
        for other, paths in self.all_paths().items():
            there = {tuple(path) for path in paths.values()}
            for path in before[other].values():
                under = other == name and path[: len(gone)] == gone
                want = path[:start] if under else path
                assert not want or any(list(p[: len(want)]) == want for p in there)
                assert not under or tuple(path) not in there
        self.pinned &= self.tree._nodes.by_id.keys()

    @rule(name=st.sampled_from([None, "b"]), really=st.integers(0, 5))
    def clear(self, name: str | None, really: int) -> None:
        if really:
            return
        self.tree.clear(name)
        assert self.tree.entries(name) == []
        self.pinned &= self.tree._nodes.by_id.keys()

    # -- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.cache.check_references()
        self.cache.check_tree()
        for seq, tokens, plain in zip(self.sequences, self.tokens, self.plain, strict=True):
            assert seq.tokens.tolist() == tokens
            if plain == len(tokens):
                self.cache.check(seq)
        entries = self.tree.entries()
        assert {entry.id for entry in entries if entry.pinned} == self.pinned
        assert sum(len(paths) for paths in self.all_paths().values()) == len(entries)


@pytest.mark.parametrize(("window", "max_bytes"), [(0, 0), (0, 60_000), (40, 0), (40, 120_000)])
def test_random_use(window: int, max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Case(Machine):
        pass

    Case.window, Case.max_bytes = window, max_bytes
    if max_bytes:
        never_above(max_bytes, monkeypatch)
    options = settings(
        max_examples=30,
        stateful_step_count=25,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Case, settings=options)


def never_above(max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that blocks are taken, what is held by then is within the budget."""
    retain = HeldBlocks.retain

    def checked(self: HeldBlocks, held: Any) -> None:
        retain(self, held)
        assert self.n_bytes <= max_bytes

    monkeypatch.setattr(HeldBlocks, "retain", checked)
