"""Merges rebuilt from scores: all that can happen, little that cannot, best first."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.tokenizer.spm_merges import rebuild_merges
from llmkit.tokenizer.string_hashes import StringHashes


def rebuilt(tokens: Sequence[str], scores: Sequence[float], formable: Sequence[bool] = ()) -> list[tuple[str, str]]:
    may = np.array(formable or [True] * len(tokens))
    merges = rebuild_merges(tokens, np.array(scores, dtype=np.float32), may)
    assert merges.dtype == np.int32
    return [(tokens[left], tokens[right]) for left, right in merges.tolist()]


def last_join(token: str, scores: dict[str, float]) -> tuple[str, str] | None:
    """The two symbols that joining the characters of `token`, best first, leaves before the whole; None if never."""
    symbols = list(token)
    while len(symbols) > 2:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            return None
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    return (symbols[0], symbols[1]) if len(symbols) == 2 else None


vocabularies = st.lists(st.text(alphabet="abc", min_size=2, max_size=8), max_size=30, unique=True).flatmap(
    lambda words: st.tuples(st.just(["a", "b", "c", *words]), st.permutations(range(len(words) + 3)))
)


@settings(max_examples=300, deadline=None)
@given(vocabularies)
def test_every_pair_that_a_token_arises_from_is_there(vocabulary: tuple[list[str], list[int]]) -> None:
    tokens, order = vocabulary
    scores = {token: -float(rank) for token, rank in zip(tokens, order, strict=True)}
    merges = rebuilt(tokens, list(scores.values()))
    for token in tokens:
        pair = last_join(token, scores)
        if pair and all(part in scores for part in pair):
            assert pair in merges, token
    ranks = [scores[left + right] for left, right in merges]
    assert ranks == sorted(ranks, reverse=True)


def test_what_cannot_happen_is_left_out() -> None:
    """`ab` goes before `bc`, so `abc` never arises from `a` and `bc`."""
    assert rebuilt(["a", "b", "c", "ab", "bc", "abc"], [0, 0, 0, -1, -2, -3]) == [("a", "b"), ("b", "c"), ("ab", "c")]
    assert rebuilt(["a", "b", "c", "ab", "bc", "abc"], [0, 0, 0, -2, -1, -3]) == [("b", "c"), ("a", "b"), ("a", "bc")]


def test_a_token_that_cannot_arise_takes_part_in_nothing() -> None:
    """`bcde` would be `bc` and `de`, but `cd` goes before both; so `abcde` cannot be `a` and `bcde` either."""
    tokens = ["a", "b", "c", "d", "e", "cd", "bc", "de", "bcde", "abcde"]
    scores = [0.0, 0, 0, 0, 0, -1, -2, -3, -4, -5]
    assert rebuilt(tokens, scores) == [("c", "d"), ("b", "c"), ("d", "e")]


def test_equal_scores_prove_nothing() -> None:
    assert set(rebuilt(["a", "aa", "aaa"], [0, -1, -1])) == {("a", "a"), ("aa", "a"), ("a", "aa")}


def test_equal_scores_go_by_length_so_that_runs_are_filled_from_the_left() -> None:
    merges = rebuilt(["a", "aa", "aaa"], [0, -1, -1])
    assert merges[-1] == ("a", "a")


def test_only_formable_tokens_take_part() -> None:
    tokens, scores = ["a", "b", "c", "ab", "abc"], [0.0, 0, 0, -1, -2]
    assert rebuilt(tokens, scores, [True, True, True, False, True]) == []
    assert rebuilt(tokens, scores, [True, True, False, True, True]) == [("a", "b")]


def test_tokens_longer_than_what_is_proved() -> None:
    """All splits stay, and nothing takes the time of a proof for each."""
    tokens = ["a" * n for n in range(1, 200)]
    merges = rebuilt(tokens, [-float(n) for n in range(199)])
    assert {("a" * 99, "a"), ("a" * 50, "a" * 50), ("a", "a")} <= set(merges)


def test_nothing_to_join() -> None:
    assert rebuilt(["a", "b"], [0, 0]) == []


# The hashes


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=20, unique=True))
def test_strings_are_found_by_the_hashes_of_their_parts(tokens: list[str]) -> None:
    hashes = StringHashes(tokens, np.ones(len(tokens), dtype=np.bool_))
    index = {token: i for i, token in enumerate(tokens)}
    for i, token in enumerate(tokens):
        ids = np.full(len(token), i, dtype=np.int32)
        cuts = np.arange(len(token), dtype=np.int64)
        assert hashes.find(hashes.prefix(ids, cuts)).tolist() == [index.get(token[:n], -1) for n in range(len(token))]
        assert hashes.find(hashes.suffix(ids, cuts)).tolist() == [index.get(token[n:], -1) for n in range(len(token))]
        left, right = ids[:1], np.zeros(1, dtype=np.int32)
        if len(token) <= hashes.n_chars.max():
            assert hashes.find(hashes.joined(left, right)).tolist() == [index.get(token + tokens[0], -1)]


def test_only_findable_strings_are_found() -> None:
    hashes = StringHashes(["a", "b"], np.array([True, False]))
    assert hashes.find(hashes.whole).tolist() == [0, -1]
