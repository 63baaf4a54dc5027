"""Results that come one after another over a long time: streamed to stdout, with an estimate of the time on stderr.

Owns when a piece is shown. Knows nothing of what it says.
"""

import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from llmkit import report


class Running:
    """`step` takes the text of each result as it comes; with JSON the texts are dropped.

    The texts of the first `n_first` are held back until the estimate has been given, so that a terminal's lines are not
    cut. Where nobody sees the stream, a bar shows how far it is.
    """

    def __init__(self, label: str, unit: str, total: int, n_first: int, as_json: bool) -> None:
        self.total, self.n_done = total, 0
        self._n_first, self._as_json, self._unit = min(n_first, total), as_json, unit
        self._held = ""
        self._stack = ExitStack()
        watched = not as_json and sys.stdout is not None and sys.stdout.isatty()
        self._bar = None if watched else self._stack.enter_context(report.progress(label, total, f" {unit}"))
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._began

    def step(self, text: str) -> None:
        """One more result is there."""
        self.n_done += 1
        self._held += text
        if self._bar is not None:
            self._bar.update(1)
        if self.n_done == self._n_first:
            left = self.seconds / self._n_first * (self.total - self.n_done)
            report.note(f"{self.seconds:.2f} s for {self._n_first} {self._unit}, {left / 60:.2f} minutes to go")
        if self.n_done >= self._n_first:
            self.flush()

    def flush(self) -> None:
        """Shows what is held back."""
        if not self._as_json:
            report.stream(self._held)
        self._held = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self.flush()
