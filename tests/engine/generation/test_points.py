"""Points of a sequence whose memory refuses to be cut, token by token. (With a model: test_conversation.py.)"""

import pytest

from llmkit.engine.generation.points import N_POINTS, Points
from tests.engine.fakes import FakeSequences


class Forgetful(FakeSequences):
    """Memory with a window of nothing: only a whole sequence can be removed."""

    rewind = "points"

    def seq_rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
        return p0 <= 0 and super().seq_rm(seq_id, p0, p1)


def after(n_kept: int, n: int = 10) -> tuple[Points, Forgetful]:
    """Tokens 0 to n - 1 in sequence 0, with a point behind each of the first n_kept."""
    memory = Forgetful()
    points = Points(memory, 0)
    for token in range(n):
        memory.sequence(0).tokens.append(token)
        if token < n_kept:
            points.keep()
    return points, memory


@pytest.mark.parametrize(
    ("ids", "n"),
    [
        (range(12), 10),  # goes on: nothing is cut
        ([0, 1, 2, 3, 4, 77], 5),  # the nearest point
        ([0, 1, 2, 77], 3),
        ([0, 1, 2], 2),  # one token is computed again, for its logits
        ([0], 0),
        ([77, 1, 2], 0),
    ],
)
def test_back_to_the_nearest_point(ids: list[int], n: int) -> None:
    points, memory = after(5)
    if n in (2, 3):
        points, memory = after(4)
    assert points.cut_back(list(ids)) == n
    assert memory.sequence(0).tokens == list(ids)[:n]


def test_the_oldest_goes() -> None:
    points, _ = after(N_POINTS + 1)
    assert points.cut_back([0, 77]) == 0, "the point behind the first token is gone"
    points, _ = after(N_POINTS + 1)
    assert points.cut_back([0, 1, 77]) == 2


def test_without_windows_there_are_none() -> None:
    memory = FakeSequences()
    points = Points(memory, 0)
    memory.sequence(0).tokens[:] = [1, 2, 3]
    points.keep()
    assert not points.are_needed
    assert memory.sequence(1).tokens == []
    assert points.cut_back([1, 2, 7]) == 2
