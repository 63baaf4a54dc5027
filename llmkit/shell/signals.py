"""`kill` and a closed terminal end a command as Ctrl-C does, with all that it then does: print, clean up, unlock.

Owns SIGTERM and SIGHUP while a command runs, and the exit codes of signals: 128 and the signal's number. Knows nothing
of what is interrupted.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT

NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", **{getattr(signal, "SIGHUP", -1): "hung up"}}


class _State:
    """The signal that came last."""

    received: int = signal.SIGINT


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP do what SIGINT does; SIGHUP stays ignored under nohup. In a thread: nothing."""
    _State.received = signal.SIGINT
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    previous = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers:
            if previous[number] is not signal.SIG_IGN:
                signal.signal(number, _pass_on)
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is _pass_on:
                signal.signal(number, previous[number])


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Whoever handles Ctrl-C handles this; a shell's background jobs ignore Ctrl-C, but not `kill`."""
    _State.received = number
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:
        raise KeyboardInterrupt


def exit_code(code: int) -> int:
    """130 becomes 143 if it was SIGTERM, 129 if it was SIGHUP, that interrupted."""
    return 128 + _State.received if code == EXIT_INTERRUPTED else code


def is_ending() -> bool:
    """Whether a signal came that is to end the program, which Ctrl-C in a conversation is not."""
    return _State.received != signal.SIGINT


def word() -> str:
    """What happened, for a message."""
    return NAMES.get(_State.received, "interrupted")
