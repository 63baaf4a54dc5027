"""The prefix tree without a model: what is found, what it costs, what stays."""

import numpy as np
import pytest

from llmkit.errors import UsageError
from llmkit.memory.block_pool import BLOCK_CELLS
from tests.memory.prefixes import Cache, Ids


def ids(n: int, seed: int, n_vocab: int = 50_000) -> Ids:
    return [int(i) for i in np.random.default_rng(seed).integers(0, n_vocab, n)]


def blocks(n: int) -> int:
    return -(-n // BLOCK_CELLS)


def test_what_was_inserted_is_found_token_for_token() -> None:
    cache = Cache()
    text = ids(100, seed=1)
    cache.session(text)
    for n in (1, 31, 32, 33, 64, 99, 100):
        assert cache.tree.match(text[:n], [""]).n_tokens == n
        assert cache.tree.match([*text[:n], 50_001], [""]).n_tokens == n
    assert cache.tree.match([*text, 1, 2], [""]).n_tokens == 100
    assert cache.tree.match([50_001, *text], [""]).n_tokens == 0
    assert cache.tree.match([], [""]).n_tokens == 0
    cache.check_references()
    cache.check_tree()


@pytest.mark.parametrize("n_shared", [512, 500, 1])
def test_sessions_over_one_prefix_share_it(n_shared: int) -> None:
    """Its own tokens, rounded up to a block; and where the prefix ends within one, that beginning once more each."""
    cache, n_sessions, n_own = Cache(n_cells=200_000), 2000, 64
    prefix = ids(n_shared, seed=0)
    cache.session(prefix)
    for i in range(n_sessions):
        n = cache.session([*prefix, 60_000 + i, *ids(n_own - 25, seed=i)], answer=ids(24, seed=-i - 1 + 10**6))
        assert n == n_shared
    rest = n_shared % BLOCK_CELLS
    n_blocks = blocks(n_shared) + n_sessions * blocks(rest + n_own) - (rest > 0)
    assert cache.kv.pool.n_used == n_blocks
    cache.check_references()
    assert len(cache.tree.entries()) <= 1 + 2 * n_sessions
    seq = cache.kv.new_sequence()
    assert cache.tree.attach(cache.tree.match([*prefix, 60_007, *ids(39, seed=7)], [""]), seq) == n_shared + 40
    cache.check(seq)


def test_unknown_ids() -> None:
    cache = Cache()
    for wrong in (cache.tree.pin, cache.tree.unpin, cache.tree.remove):
        with pytest.raises(UsageError, match="7"):
            wrong(7)
    for tokens in ([[1]], ["a"], [-1], [2**31], np.array([1.5])):
        with pytest.raises(UsageError):
            cache.tree.match(tokens, [""])  # type: ignore[arg-type]
