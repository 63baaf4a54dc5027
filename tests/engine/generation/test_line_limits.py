"""The ends of a text that count at its lines."""

import pytest

from llmkit.engine.generation.line_limits import LineLimits


def test_time_runs_out_at_a_newline_only() -> None:
    limits = LineLimits(t_max_s=1.0)
    assert [limits.reached(text, s) for text, s in (("a\n", 0.5), ("b", 2.0), ("c\nd", 2.0))] == [False, False, True]
    assert limits.has_new_line


@pytest.mark.parametrize(
    ("pieces", "ends"),
    [
        (["x\n", "    y", "\n", "  ", "  z"], False),
        (["x\n", "  ", " y"], True),
        (["x\n", "\n", "\n    y"], False),
        (["  x\n    y\nz"], True),
        (["x"], False),
        (["x\n", "  "], False),
        (["x\n\t\t\t\ty"], False),
    ],
)
def test_a_line_that_is_indented_less_ends_it(pieces: list[str], ends: bool) -> None:
    limits = LineLimits(n_indent=4)
    found = [limits.reached(piece, 0.0) for piece in pieces]
    assert found == [False] * (len(pieces) - 1) + [ends]


def test_without_limits_nothing_ends() -> None:
    limits = LineLimits()
    assert not any(limits.reached(text, 1e9) for text in ("a\n", "b\nc", "\n"))
