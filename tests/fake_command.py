"""A command that ends in every possible way, for test_cli.py; `python -m tests.fake_command` runs it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from llmkit import cli, report
from llmkit.errors import ContextFullError

FAKE = cli.Command("fake", "tests.fake_command", "fake_cli", "For tests.")


def fake_cli(
    how: Annotated[str, typer.Argument()] = "",
    top_k: Annotated[int, typer.Option("--top-k", "-tk")] = 0,
    prompt: Annotated[str, typer.Option("-p")] = "",
) -> int | None:
    """End in the way that HOW says."""
    if how == "llmkit-error":
        raise ContextFullError("5 tokens do not fit", "use a larger -c")
    if how == "memory":
        raise MemoryError
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "missing-file":
        Path("/no/such/file").read_bytes()
    if how == "bug":
        raise KeyError("surprise")
    if how == "endless":
        while True:
            report.stream("word\n")
    if how == "negative":
        return 2
    if how == "exit":
        raise typer.Exit(2)
    report.result(f"{top_k} {prompt}")
    return None


if __name__ == "__main__":
    cli.COMMANDS["fake"] = FAKE
    sys.exit(cli.main(["fake", *sys.argv[1:]]))
