"""Runs the checks on a model, one after the other, whatever the one before has found."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llmkit.errors import LlmkitError
from llmkit.evaluate.state_checks.checks import CHECKS, SkippedError
from llmkit.evaluate.state_checks.going_on import DifferenceError
from llmkit.evaluate.state_checks.setting import Setting

if TYPE_CHECKING:
    from llmkit.models.model import Model
    from llmkit.params import ContextParams

Outcome = Literal["ok", "skipped", "FAILED"]


@dataclass(frozen=True)
class Result:
    """What a check found, in words."""

    name: str
    outcome: Outcome
    detail: str

    @property
    def failed(self) -> bool:
        """Whether something differs."""
        return self.outcome == "FAILED"


def run_checks(
    model: Model, prompt: list[int], n_predict: int, params: ContextParams, folder: str | None = None
) -> Iterator[Result]:
    """A result for each check. folder: where files of a few states' size are kept meanwhile."""
    with tempfile.TemporaryDirectory(prefix="llmkit-states-", dir=folder) as place:
        setting = Setting(model, prompt, n_predict, params, Path(place))
        for name, check in CHECKS.items():
            try:
                yield Result(name, "ok", check(setting))
            except SkippedError as reason:
                yield Result(name, "skipped", str(reason))
            except DifferenceError as found:
                yield Result(name, "FAILED", str(found))
            except LlmkitError as error:
                yield Result(name, "FAILED", f"{type(error).__name__}: {error.message}")
