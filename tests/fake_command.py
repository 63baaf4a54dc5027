"""A command that ends in every possible way, for test_cli.py; `python -m tests.fake_command` runs it."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from llmkit import cli, report
from llmkit.__main__ import run
from llmkit.errors import ContextFullError
from llmkit.shell import llama_flags

FAKE = cli.Command("fake", "tests.fake_command", "fake_cli", "For tests.")


def fake_cli(
    how: Annotated[str, typer.Argument()] = "",
    top_k: Annotated[int, typer.Option("--top-k", "-tk")] = 0,
    prompt: Annotated[str, typer.Option("-p", "--prompt")] = "",
    temp: Annotated[float, typer.Option("--temp")] = 0.0,
    stop: Annotated[list[str] | None, typer.Option("--stop")] = None,
    swa_full: Annotated[bool, typer.Option("--swa-full")] = False,
    escape: Annotated[bool, typer.Option("--escape/--no-escape")] = True,
    model: Annotated[str | None, typer.Option("-m", "--model", metavar="PATH|NAME")] = None,
    api_key: Annotated[str, typer.Option("--api-key")] = "",
) -> int | None:
    """End in the way that HOW says."""
    if how == "llmkit-error":
        raise ContextFullError("5 tokens do not fit", "use a larger -c")
    if how == "memory":
        raise MemoryError
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "interrupt-an-import":
        exec("raise KeyboardInterrupt")  # noqa: S102  as dataclasses and named tuples do it
    if how == "missing-file":
        Path("/no/such/file").read_bytes()
    if how == "bug":
        raise KeyError("surprise")
    if how == "endless":
        while True:
            report.stream("word\n")
    if how == "values":
        report.result_json([top_k, temp, stop, swa_full, escape, model])
        return None
    if how == "say":
        report.note("note")
        report.detail("detail")
        report.warning("careful")
        report.stream_stderr("a table\n")
        with report.progress("work", 10) as bar:
            bar.update(5)
        return None
    if how == "wait":
        report.stream("ready\n")
        time.sleep(60)
    if how == "negative":
        return 2
    if how == "exit":
        raise typer.Exit(2)
    report.result(f"{top_k} {prompt}")
    return None


if __name__ == "__main__":
    cli.COMMANDS["fake"] = FAKE
    llama_flags.TOOLS["fake"] = ("completion",)
    run(lambda: cli.main(["fake", *sys.argv[1:]]))
