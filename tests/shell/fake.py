"""Runs the command of tests/fake_command.py in this process, as `llmkit fake ...`."""

import json
from typing import Any

import pytest

from llmkit import cli
from llmkit.shell import llama_flags
from tests.fake_command import FAKE
from tests.tools.in_process import Finished, run_llmkit


def install(monkeypatch: pytest.MonkeyPatch, tool: str = "completion") -> None:
    """Makes it a command that stands for this tool of llama.cpp."""
    monkeypatch.setitem(cli.COMMANDS, "fake", FAKE)
    monkeypatch.setitem(llama_flags.TOOLS, "fake", (tool,))


def values(*args: str) -> dict[str, Any]:
    """What the command was called with."""
    done = run_llmkit("fake", "values", *args)
    assert done.returncode == 0, done.stderr
    return dict(zip(("top_k", "temp", "stop", "swa_full", "escape", "model"), json.loads(done.stdout), strict=True))


def refused(*args: str) -> str:
    """What was said about a command line that is wrong."""
    done: Finished = run_llmkit("fake", "values", *args)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr
