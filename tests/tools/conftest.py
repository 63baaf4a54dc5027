"""What the tests of `llmkit run` share: a fake engine, and the command called in this process."""

import json
from typing import Any

import pytest

from llmkit.cli import main
from tests.tools.fake_engine import FakeEngine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    return FakeEngine().install(monkeypatch)


@pytest.fixture
def bare_engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A model without a tokenizer."""
    return FakeEngine(b"abcdef", tokenizer=False).install(monkeypatch)


class Result:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: str) -> Result:
        capsys.readouterr()
        code = main(["run", *args])
        return Result(code, *capsys.readouterr())

    return call
