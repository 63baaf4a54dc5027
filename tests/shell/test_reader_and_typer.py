"""What Typer is given means what was typed: on random words, both agree with Typer alone."""

from collections.abc import Sequence
from typing import Any

import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from llmkit.errors import UsageError
from llmkit.shell.arguments import Reader
from llmkit.shell.command import BuiltCommand, build_command
from llmkit.shell.llama_flags import CommandFlags
from tests.fake_command import fake_cli

COMMAND: BuiltCommand = build_command("fake", fake_cli)
OPTIONS = COMMAND.options
READER = Reader("fake", OPTIONS, CommandFlags("run"))

WORDS = [
    *(
        "--top-k",
        "--top_k=5",
        "-tk",
        "5",
        "-5",
        "--temp=1.5",
        "--temp",
        "0.5",
        "--stop",
        "--stop=a=b",
        "x",
        "",
        "-",
        "--",
    ),
    *("-p", "--prompt=--stop", "--swa-full", "--swa-full=1", "--escape", "--no-escape", "-m", "-v", "-q", "values"),
    *("--color=off", "-ngl"),
]


def by_typer(args: Sequence[str]) -> dict[str, Any] | None:
    """The values that Typer reads; None if it refuses them."""
    try:
        return dict(COMMAND.parser.make_context("fake", list(args)).params)
    except typer.TyperException:
        return None


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=7))
def test_it_means_the_same(args: list[str]) -> None:
    alone = by_typer(args)
    try:
        line = READER.read(args)
    except UsageError:
        # click reads the letters of a word as options: -n gl. An empty text names no model; Typer does not mind.
        assert alone is None or "-ngl" in args or alone["model"] == ""
        return
    ours = by_typer(line.args)
    if not line.ignored:
        assert ours == alone
    if ours is not None:
        changed = {option.name for option in OPTIONS if option.name in ours and ours[option.name] != option.default}
        assert {name for name in changed if ours[name] not in ((), [])} <= set(line.given)
