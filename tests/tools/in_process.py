"""Runs `llmkit ...` within the test's own process, without starting an interpreter each time."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from llmkit import cli, report


@dataclass(frozen=True)
class Finished:
    """What is known of a run that has ended."""

    returncode: int
    stdout: str
    stderr: str


def run_llmkit(*args: str, stdin: bytes | None = None) -> Finished:
    """The exit code and both streams; without `stdin` there is none to read."""
    out, err = io.StringIO(), io.StringIO()
    given = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", given):
        try:
            code = cli.main(list(args))
        finally:
            report.set_level()
    return Finished(code, out.getvalue(), err.getvalue())
