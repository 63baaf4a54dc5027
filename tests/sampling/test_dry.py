"""DRY: the length of repetitions against the twin, and what ends one."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.sampling.dry import Dry, breaker_tails, longest_repeats
from tests.reference import sampling as reference
from tests.sampling.rows import Words, all_of, probs_of, row

LETTERS = Words([*"abcdefgh"])


def lowered(dry: Dry, last: Sequence[int], n_vocab: int = 8) -> list[float]:
    """What each logit lost; they start at 0."""
    return (-dry(all_of(row(*[0.0] * n_vocab)), np.array(last, dtype=np.int64)).logits).tolist()


def test_a_longer_repetition_costs_more() -> None:
    dry = Dry(2.0, 1.5, 2, [], LETTERS)
    assert lowered(dry, [0, 1, 2, 0, 1]) == [0, 0, 2.0, 0, 0, 0, 0, 0]
    assert lowered(dry, [3, 0, 1, 2, 3, 0, 1])[2] == 3.0
    assert lowered(dry, [4, 3, 0, 1, 2, 4, 3, 0, 1])[2] == 4.5
    assert lowered(dry, [0, 1, 2, 0]) == [0.0] * 8


def test_the_longest_of_several_repetitions_counts() -> None:
    found = longest_repeats(np.array([1, 2, 7, 5, 1, 2, 6, 5, 1, 2]), 9, 1)
    assert found == {7: 2, 6: 3}


def test_a_breaker_ends_a_repetition_and_is_free_itself() -> None:
    last = [0, 1, 3, 2, 0, 1, 3]
    assert lowered(Dry(1.0, 2.0, 1, [], LETTERS), last)[2] == 4.0
    assert lowered(Dry(1.0, 2.0, 1, ["d"], LETTERS), last) == [0.0] * 8
    assert lowered(Dry(1.0, 2.0, 1, ["b"], LETTERS), last)[2] == 1.0
    assert lowered(Dry(1.0, 2.0, 1, ["c"], LETTERS), last) == [0.0] * 8  # c would be next


def test_breakers_are_found_in_tokens_and_across_them() -> None:
    words = Words(["a\nb", "x:", " :", "</", "think", ">", "<", "/", "a", "é"[:0] or b"\xc3", b"\xa9"])
    assert breaker_tails(0, [b"\n"], words) == {()}
    assert breaker_tails(1, [b":"], words) == {()}
    assert breaker_tails(3, [b"</think>"], words) == {(4, 5)}
    assert breaker_tails(6, [b"</think>"], words) == {(7, 4, 5)}
    assert breaker_tails(8, [b"\n", b":"], words) == set()
    assert breaker_tails(9, ["é".encode()], words) == set()  # the rest is half a character


def test_a_breaker_of_several_tokens() -> None:
    words = Words(["<", "end", ">", "a", "b", "c"])
    last = [3, 4, 5, 0, 1, 2, 3, 4]
    assert lowered(Dry(1.0, 2.0, 1, [], words), last, 6)[5] == 2.0
    assert lowered(Dry(1.0, 2.0, 3, ["<end>"], words), [3, 4, 5, 3, 0, 1, 2, 3, 4], 6) == [0.0] * 6
    assert lowered(Dry(1.0, 2.0, 1, ["<end>"], words), last, 6)[5] == 2.0  # a, b come after it
    assert lowered(Dry(1.0, 2.0, 1, ["<end>"], words), [0, 1, 2, 3, 0, 1, 2], 6)[3] == 0.0
    assert lowered(Dry(1.0, 2.0, 1, [], words), [0, 1, 2, 3, 0, 1, 2], 6)[3] == 4.0


def test_without_a_vocabulary_there_are_no_breakers() -> None:
    assert lowered(Dry(1.0, 2.0, 1, ["a", "b"], None), [0, 1, 2, 0, 1])[2] == 2.0


def test_a_penalty_beyond_all_numbers_stays_finite() -> None:
    last = [0, 1] * 2000
    found = Dry(1e30, 1e6, 0, [], LETTERS)(all_of(row(0, 0, 0)), np.array(last))
    assert np.isfinite(found.logits).all()
    assert probs_of(found) == {0: 0.0, 1: 0.0, 2: 1.0}
    assert lowered(Dry(1.0, 1.0, 2, [], LETTERS), last)[:3] == [1.0, 0.0, 0.0]


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(0, 4),
    st.sampled_from([1.0, 1.3, 1.75]),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=2),
)
@settings(max_examples=200, deadline=None)
def test_penalties_equal_the_twins(last: list[int], allowed: int, base: float, breakers: list[list[int]]) -> None:
    texts = ["".join("abcd"[i] for i in breaker) for breaker in breakers]
    found = probs_of(Dry(0.7, base, allowed, texts, LETTERS)(all_of(row(0, 1, 2, 3, 4)), np.array(last, np.int64)))
    pairs = reference.dry([(4, 4.0), (3, 3.0), (2, 2.0), (1, 1.0), (0, 0.0)], last, 0.7, base, allowed, breakers)
    expected = dict(zip((i for i, _ in pairs), reference.softmax(pairs), strict=True))
    assert found == pytest.approx(expected, rel=1e-5)
