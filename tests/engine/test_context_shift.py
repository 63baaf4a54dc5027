"""Context shift and Self-Extend, by what they do to positions in a memory of plain lists."""

import pytest

from llmkit.engine.context_shift import SelfExtend, require_shift, shift_context
from llmkit.errors import UnsupportedError, UsageError
from tests.engine.fake_memory import FakeMemory


def filled(n: int) -> FakeMemory:
    memory = FakeMemory()
    memory.feed(range(n))
    return memory


def test_a_shift_keeps_the_beginning_and_moves_up_the_rest() -> None:
    memory = filled(10)
    assert shift_context(memory, 0, n_keep=2, n_discard=3) == 7
    assert memory.tokens == [0, 1, 5, 6, 7, 8, 9]
    assert memory.positions == list(range(7))


def test_a_shift_of_all_that_may_go() -> None:
    memory = filled(10)
    assert shift_context(memory, 0, n_keep=4, n_discard=20) == 4
    assert memory.tokens == [0, 1, 2, 3]


@pytest.mark.parametrize(("n_grp", "width"), [(2, 8), (4, 16), (3, 9), (2, 2), (1, 8)])
def test_self_extend_groups_all_windows_but_the_last(n_grp: int, width: int) -> None:
    """Token i of those before shares position i // n_grp; the last window goes on from there, one position each."""
    memory, extend, n_past = FakeMemory(), SelfExtend(n_grp, width), 0
    for window in range(5):
        if window:
            n_past = extend.compress(memory, 0, n_past)
        memory.feed(range(window * width, (window + 1) * width))
        n_past += width
        grouped = [i // n_grp for i in range(window * width)]
        first = window * width // n_grp
        assert memory.positions == grouped + list(range(first, first + width))
        assert n_past == memory.seq_pos_max(0) + 1


def test_positions_stay_within_the_training_context() -> None:
    """4 x 64 tokens, for a model that knows 64 positions, but for what the last window is not grouped."""
    memory, extend, n_past = FakeMemory(), SelfExtend(4, 16), 0
    for window in range(16):
        n_past = (extend.compress(memory, 0, n_past) if window else 0) + 16
        memory.feed(range(16))
    assert max(memory.positions) == 64 + 16 - 16 // 4 - 1


@pytest.mark.parametrize(("n_grp", "width", "named"), [(0, 8, "-gan is 0"), (3, 8, "-gaw"), (2, 0, "-gaw")])
def test_sizes_are_checked(n_grp: int, width: int, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        SelfExtend(n_grp, width)


def test_a_window_that_has_dropped_what_would_be_seen_is_named() -> None:
    class Window(FakeMemory):
        def seq_rm(self, seq_id: int, p0: int = -1, p1: int = -1) -> bool:
            return False

    memory = Window()
    with pytest.raises(UnsupportedError, match="dropped"):
        shift_context(memory, 0, 2, 3)
    assert memory.operations == []


def test_a_memory_that_cannot_shift_is_named() -> None:
    require_shift(FakeMemory(), "this")
    with pytest.raises(UnsupportedError, match="this moves tokens"):
        require_shift(FakeMemory(can_shift=False), "this")
