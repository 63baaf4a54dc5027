"""Ctrl-C as a question that a loop asks, so that it ends at a place of its choosing with all it has.

Owns the SIGINT handler while it is in force. Knows nothing of what is interrupted.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interruption:
    """Inside `with`, the first Ctrl-C sets what calling this object returns, and a second one raises KeyboardInterrupt.

    In a thread that is not the main one, which gets no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._asked = False
        self._previous: Any = None

    def __call__(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._asked

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
