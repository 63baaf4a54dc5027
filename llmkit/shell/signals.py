"""`kill` and a closed terminal end a command as Ctrl-C does, with all that it then does: print, clean up, unlock.

Owns SIGINT, SIGTERM and SIGHUP while a command runs, and the exit codes of signals: 128 and the signal's number. Knows
nothing of what is interrupted.
"""

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 128 + signal.SIGINT

NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", **{getattr(signal, "SIGHUP", -1): "hung up"}}


class State:
    """What is known of the signals of a command."""

    received: int = signal.SIGINT
    """The one that came last."""
    in_force: bool = False
    """Whether as_ctrl_c holds."""
    working: bool = False
    """Whether a signal interrupts: not before the work, and not while what ended it is told. Set without a function for
    it, at whose beginning a signal would still interrupt."""
    late: bool = False
    """Whether one came at such a moment."""


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP do what SIGINT does; what is ignored stays so. In a thread, or in another: nothing.

    A first signal that comes when State.working is not set is only remembered, for interrupt_if_late and exit_code.
    """
    if State.in_force:
        yield
        return
    State.received, State.working, State.late = signal.SIGINT, False, False
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    previous = {number: signal.getsignal(number) for number in numbers}
    State.in_force, hook = True, sys.unraisablehook
    try:
        sys.unraisablehook = lambda event: _come_again(event) or hook(event)
        for number in numbers:
            if previous[number] not in (signal.SIG_IGN, None):
                signal.signal(number, _interrupt if number == signal.SIGINT else _pass_on)
        yield
    finally:
        State.in_force, sys.unraisablehook = False, hook
        for number in numbers:
            if signal.getsignal(number) in (_interrupt, _pass_on):
                signal.signal(number, previous[number])


def interrupt_if_late() -> None:
    """KeyboardInterrupt for a signal that came before the work."""
    if State.late:
        State.late = False
        raise KeyboardInterrupt


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Whoever handles Ctrl-C handles this; a shell's background jobs ignore Ctrl-C, but not `kill`."""
    State.received = number
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and handler is not _interrupt:
        handler(signal.SIGINT, frame)
    else:
        _raise()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C, where nobody else has taken it."""
    _raise()


def _raise() -> None:
    if State.working or State.late:
        raise KeyboardInterrupt
    State.late = True


def _come_again(event: "sys.UnraisableHookArgs") -> bool:
    """True for a KeyboardInterrupt that Python could only ignore: in a destructor, or in what C calls, as Numba's load
    of compiled code is. The signal then comes once more, a little later and so, very likely, elsewhere.
    """
    if not issubclass(event.exc_type, KeyboardInterrupt):
        return False
    _thread.start_new_thread(_send_later, (State.received,))  # threading's would wait here until it runs
    return True


def _send_later(number: int) -> None:
    time.sleep(0.1)
    if State.working:
        os.kill(os.getpid(), number)


def exit_code(code: int) -> int:
    """130 becomes 143 if it was SIGTERM, 129 if it was SIGHUP, that interrupted; so does any, if it came at the end."""
    return 128 + State.received if code == EXIT_INTERRUPTED or State.late else code


def is_ending() -> bool:
    """Whether a signal came that is to end the program, which Ctrl-C in a conversation is not."""
    return State.received != signal.SIGINT


def word() -> str:
    """What happened, for a message."""
    return NAMES.get(State.received, "interrupted")
